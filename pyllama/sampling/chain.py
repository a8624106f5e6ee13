"""The sampling chain: logits in, token id out.

    chain = Chain(SamplingParams(seed=42), n_vocab=49152, eog_ids=(0,))
    print(chain.describe())         # logits -> ?penalties -> top-k -> top-p -> ... -> dist
    chain.accept_prompt(prompt)
    token = chain.sample(logits)    # the logits are not written to
    chain.accept(token)
    m = chain.mark()                # then sample and accept drafted tokens ...
    chain.rollback(m)               # ... and undo that

With equal logits, parameters and seed a chain samples the same token as llama.cpp, up to the
order of equal logits. With ``dist`` each `sample` consumes two words of its random stream, also if
greedy. NaN counts as -inf; if every logit is -inf, token 0 is returned. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from itertools import chain as chained
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from pyllama.errors import SamplingError
from pyllama.parameters.sampling import (
    ADAPTIVE_P,
    DEFAULT_SAMPLERS,
    SAMPLER_ROWS,
    SamplingParams,
)
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.fused import Fused
from pyllama.sampling.sampler import ChainSetup, Sampler
from pyllama.sampling.samplers.adaptive_p import AdaptiveP
from pyllama.sampling.samplers.bad_words import BadWords
from pyllama.sampling.samplers.bias import AllowedTokens, LogitBias
from pyllama.sampling.samplers.custom import CustomSampler
from pyllama.sampling.samplers.dist import PICK_WORDS, Dist, Distribution, FinalDraw
from pyllama.sampling.samplers.min_tokens import MinTokens
from pyllama.sampling.samplers.mirostat import Mirostat, Mirostat2
from pyllama.sampling.samplers.reasoning_budget import ReasoningBudget
from pyllama.sampling.samplers.temperature import Temperature
from pyllama.sampling.top import Floats

if TYPE_CHECKING:
    from pyllama.grammar import Matcher
    from pyllama.tokenizer import Tokenizer


def _class_of(home: str) -> Any:
    module, _, name = home.partition(":")
    return getattr(import_module(f"pyllama.sampling.samplers.{module}"), name)


SAMPLERS: dict[str, type[Sampler]] = {
    name: _class_of(row.home) for name, row in SAMPLER_ROWS.items() if name != ADAPTIVE_P
}
"""What `SamplingParams.samplers` may name; also ``adaptive_p``, which ends the chain."""

_FIRST: tuple[type[Sampler], ...] = (LogitBias, AllowedTokens, BadWords, MinTokens)

Mark = tuple[Any, ...]  # of the samplers, of the final draw, and of a subclass


def sampler_name(text: str) -> str:
    """The name in `SAMPLERS` for any of llama.cpp's spellings, such as ``top-k`` or ``temp``.

    Raises:
        SamplingError: there is no such sampler.
    """
    if text in SAMPLERS:  # most; a table of all spellings takes longer than all samplers
        return text
    known, wanted = (*SAMPLERS, ADAPTIVE_P), text.lower()
    names = {n.replace("_", dash): n for n in known for dash in ("", "-", "_")}
    names |= {alias: name for name, row in SAMPLER_ROWS.items() for alias in row.aliases}
    if wanted not in names:
        raise SamplingError(f"unknown sampler {text}; choose from {', '.join(known)}")
    return names[wanted]


class Chain:
    """The samplers of one generation, in order, and the final draw.

    Args:
        params: sampling parameters.
        n_vocab: number of logits.
        eog_ids: token ids that end a generation.
        stop_ids: further token ids that end this one.
        tokenizer: needed by samplers with text: DRY's breakers, bad words, infill.

    Attributes:
        reasoning: the limit of reasoning, if there is one.

    Raises:
        SamplingError: an unknown sampler, or a token outside the vocabulary.
    """

    def __init__(
        self,
        params: SamplingParams,
        n_vocab: int,
        eog_ids: Iterable[int] = (),
        *,
        stop_ids: Iterable[int] = (),
        tokenizer: Tokenizer | None = None,
    ) -> None:
        setup = ChainSetup(params, n_vocab, tuple(eog_ids), tuple(stop_ids), tokenizer)
        words = [token for word in params.bad_words if not isinstance(word, str) for token in word]
        forced = (*params.reasoning_budget_forced, *chained(*params.reasoning_budget_end))
        allowed = params.allowed_token_ids or ()
        for token in (*params.logit_bias, *allowed, *setup.eog_ids, *words, *forced):
            _check_token("biased token", token, n_vocab)
        self._setup, self._n_vocab = setup, n_vocab
        self._build()

    def _build(self) -> None:
        """Make the samplers in their initial state; renews a random seed."""
        params, n_vocab = self._setup.params, self._n_vocab
        given = DEFAULT_SAMPLERS if params.samplers is None else params.samplers
        items = [sampler_name(item) if isinstance(item, str) else item for item in given]
        self._final = _final_draw(params, n_vocab, ADAPTIVE_P in items)
        setup = replace(self._setup, seed=self._final.seed)
        head = [sampler for kind in _FIRST if (sampler := kind.create(setup)) is not None]
        links: list[tuple[str, Sampler | None]] = [(sampler.label, sampler) for sampler in head]
        for item in items:
            if not isinstance(item, str):
                custom = CustomSampler(item)
                links.append((custom.name, custom))
            elif item != ADAPTIVE_P and not params.mirostat:
                links.append((SAMPLERS[item].label, SAMPLERS[item].create(setup)))
        if params.mirostat:
            links.append(("temp", Temperature(params.temp) if params.temp != 1 else None))
        self.reasoning = ReasoningBudget.create(setup)
        first: list[Sampler] = [] if self.reasoning is None else [self.reasoning]
        self._samplers = first + [sampler for _, sampler in links if sampler is not None]
        # samplers with a history of tokens, and those with any state
        self._listeners = [s for s in self._samplers if type(s).accept is not Sampler.accept]
        self._stateful = [s for s in self._samplers if not s.is_stateless]
        self._greedy = _greedy_prefix(self._samplers)
        # whether all of these can tell that they keep the argmax
        self._only_argmax = self._greedy is not None and all(
            type(s).keeps_argmax_of is not Sampler.keeps_argmax_of for s in self._greedy
        )
        self._head = list(takewhile(lambda sampler: sampler.keeps_all, self._samplers))
        rest = self._samplers[len(self._head) :]
        self._dist = self._final if isinstance(self._final, Dist) else None
        fusible = self._greedy is None and self._dist is not None
        self._fused = Fused.create(rest, n_vocab) if fusible else None
        # the draw's random stream, in a chain whose token is always the argmax
        self._argmax_rng = self._dist.rng if self._dist and self._greedy == [] else None
        shown = [label if sampler is not None else f"?{label}" for label, sampler in links]
        self._description = " -> ".join(["logits", *shown, self._final.label])

    @property
    def seed(self) -> int:
        """The seed in use, including a random one."""
        return self._final.seed

    @property
    def matcher(self) -> Matcher | None:
        """State of the grammar that applies to the next token; None if none does."""
        return None

    def sample(self, logits: Floats, argmax: int | None = None) -> int:
        """Sample a token; does not add it to the history, see `accept`.

        Args:
            logits: float32[n_vocab], not written to.
            argmax: index of the largest logit, the first of equal ones or of NaN, if known. The
                logits are then taken from a context without checks.

        Raises:
            SamplingError: the logits have another shape, or a custom sampler broke its rules.
            GrammarError: in a `ConstrainedChain`, no token is allowed.
        """
        if argmax is None:
            logits = self._checked(logits)
        elif self._argmax_rng is not None and logits.item(argmax) > -inf:
            self._argmax_rng.n_skip += PICK_WORDS  # `Dist.skip` without its call, once per token
            return argmax
        dist = self._dist
        if self._greedy is None:
            if dist is None:
                return self._final.pick(self._run(self._samplers, logits, argmax))
            uniform = dist.uniform()
            if self._fused is not None:
                edited = self._run(self._head, logits, argmax).logits if self._head else logits
                token = self._fused.pick(edited, uniform)
                if token >= 0:
                    return token
            return dist.pick(self._run(self._samplers, logits, argmax), uniform)
        if dist is not None:
            dist.skip()
        if self._only_argmax:
            # avoids a copy of all logits
            argmax = int(logits.argmax()) if argmax is None else argmax
            unchanged = not self._greedy or all(s.keeps_argmax_of(argmax) for s in self._greedy)
            if unchanged and logits.item(argmax) > -inf:
                return argmax
        candidates = self._run(self._greedy, logits, argmax)
        return candidates.token(candidates.argmax())

    def apply(self, logits: Floats) -> Candidates:
        """The candidates that `sample` draws from; consumes no random numbers."""
        mark = self.mark()
        try:
            candidates = self._run(self._samplers, self._checked(logits))
            _ = candidates.ids  # found by the logits, which the caller may change later
            return candidates
        finally:
            self.rollback(mark)

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        """Add the prompt to the history of those samplers that do not only count generated tokens.

        Raises:
            SamplingError: a token is outside the vocabulary.
        """
        for token in (min(tokens), max(tokens)) if tokens else ():
            _check_token("accepted token", token, self._n_vocab)
        for sampler in self._listeners:
            sampler.accept_prompt(tokens)

    def distribution(self, logits: Floats, argmax: int | None = None) -> Distribution | None:
        """The distribution of the token that `sample` returns; None for chains without one.

        Without one are greedy chains, whose token is certain, and those that do not end with
        ``dist``. The final draw consumes no random number, other samplers consume theirs.

        Args:
            logits, argmax: see `sample`.
        """
        if self._greedy is not None or self._dist is None:
            return None
        if argmax is None:
            logits = self._checked(logits)
        found = None
        if self._fused is not None:
            edited = self._run(self._head, logits, argmax).logits if self._head else logits
            found = self._fused.weights(edited)
        if found is None:
            candidates = self._run(self._samplers, logits, argmax)
            found = candidates.ids, candidates.weights()
        probs = found[1].astype(np.float64)
        return Distribution(found[0], probs / probs.sum())

    def likeliest(self, logits: Floats, argmax: int | None = None) -> tuple[int, float] | None:
        """The token with the largest probability, the first of equal ones, and that probability.

        As `distribution`, with less overhead: None for chains without one.
        """
        if self._fused is not None and not self._head and argmax is not None:
            found = self._fused.likeliest(logits)
            if found is not None:
                return found
        whole = self.distribution(logits, argmax)
        if whole is None:
            return None
        best = int(whole.probs.argmax())
        return whole.ids.item(best), whole.probs.item(best)

    def accept(self, token: int) -> None:
        """Add a generated token to the history.

        Raises:
            SamplingError: the token is outside the vocabulary.
            GrammarError: the grammar does not allow the token.
        """
        if not 0 <= token < self._n_vocab:
            _check_token("accepted token", token, self._n_vocab)
        for sampler in self._listeners:
            sampler.accept(token)
        if self._dist is None:
            self._final.accept(token)

    def mark(self) -> Mark:
        """The state of all samplers and random streams, for `rollback`. Costs about 1 us."""
        return tuple([s.mark() for s in self._stateful]), self._final.mark()

    def rollback(self, mark: Mark) -> None:
        """Restore the state at a mark; later marks become invalid."""
        for sampler, state in zip(self._stateful, mark[0], strict=True):
            sampler.rollback(state)
        self._final.rollback(mark[1])

    def clone(self) -> Chain:
        """An independent copy of the chain and its state."""
        return deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Chain:
        copy = object.__new__(type(self))
        shared = self._setup, self._setup.tokenizer  # immutable, and large
        memo.update({id(self): copy, **{id(value): value for value in shared}})
        copy.__dict__ = deepcopy(self.__dict__, memo)
        return copy

    def reset(self) -> None:
        """Restore the initial state; a random seed is renewed."""
        self._build()

    def describe(self) -> str:
        """The chain in one line, as llama.cpp prints it; disabled samplers start with `?`."""
        return self._description

    def _checked(self, logits: Floats) -> Floats:
        logits = np.asarray(logits, np.float32)
        if logits.shape != (self._n_vocab,):
            raise SamplingError(
                f"sample: got logits of shape {logits.shape}, want ({self._n_vocab},)"
            )
        return np.ascontiguousarray(logits)

    def _run(
        self, samplers: list[Sampler], logits: Floats, argmax: int | None = None
    ) -> Candidates:
        candidates = Candidates(logits, argmax)
        # logits near float32's minimum may overflow to -inf, infinite biases compute inf - inf
        with np.errstate(over="ignore", invalid="ignore"):
            for sampler in samplers:
                sampler.apply(candidates)
        return candidates


def _greedy_prefix(samplers: list[Sampler]) -> list[Sampler] | None:
    """The samplers of a greedy chain that may change the argmax; None if it is not greedy."""
    for i, sampler in enumerate(samplers):
        if isinstance(sampler, Temperature) and sampler.is_greedy:
            if any(isinstance(other, CustomSampler) for other in samplers[i:]):
                return None  # it may do anything
            while i and samplers[i - 1].keeps_argmax:
                i -= 1
            return samplers[:i]
    return None


def _final_draw(params: SamplingParams, n_vocab: int, adaptive: bool) -> FinalDraw:
    tau, eta = params.mirostat_tau, params.mirostat_eta
    if params.mirostat == 1:
        return Mirostat(n_vocab, tau, eta, params.seed)
    if params.mirostat == 2:
        return Mirostat2(tau, eta, params.seed)
    if adaptive:
        return AdaptiveP(params.adaptive_target, params.adaptive_decay, params.seed)
    return Dist(params.seed)


def _check_token(what: str, token: int, n_vocab: int) -> None:
    if not 0 <= token < n_vocab:
        raise SamplingError(f"{what} {token} is outside the vocabulary of {n_vocab} tokens")
