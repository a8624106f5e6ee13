"""The sampling chain: logits in, token id out.

    chain = Chain(SamplingParams(seed=42), n_vocab=49152, eog_ids=(0,))
    print(chain.describe())         # logits -> ?penalties -> top-k -> top-p -> ... -> dist
    for token in prompt:
        chain.accept(token)
    token = chain.sample(logits)    # the logits are not written to
    chain.accept(token)
    m = chain.mark()                # then sample and accept drafted tokens ...
    chain.rollback(m)               # ... and undo that

With equal logits, parameters and seed a chain samples the same token as llama.cpp, up to float32
rounding of exp. Each `sample` consumes two words of the random stream, also if greedy. NaN counts
as -inf; if every logit is -inf, token 0 is returned. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from itertools import takewhile
from math import inf

import numpy as np

from pyllama.errors import SamplingError
from pyllama.sampling.bias import LogitBias
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.dist import Dist, Distribution
from pyllama.sampling.fused import Fused
from pyllama.sampling.params import SamplingParams
from pyllama.sampling.penalties import Penalties
from pyllama.sampling.rng import Mark as StreamMark
from pyllama.sampling.sampler import ChainSetup, Sampler
from pyllama.sampling.temperature import Temperature
from pyllama.sampling.top import Floats
from pyllama.sampling.truncation import MinP, TopK, TopP

SAMPLERS: dict[str, type[Sampler]] = {
    "penalties": Penalties,
    "top_k": TopK,
    "top_p": TopP,
    "min_p": MinP,
    "temperature": Temperature,
}
"""Every sampler that `SamplingParams.samplers` may name, in the order of the default chain."""


Mark = tuple[tuple[object, ...], StreamMark]


class Chain:
    """The samplers of one generation, in order, and the final draw.

    Args:
        params: sampling parameters.
        n_vocab: number of logits.
        eog_ids: token ids that ``ignore_eos`` bans.

    Raises:
        SamplingError: an unknown sampler, or a biased token outside the vocabulary.
    """

    def __init__(self, params: SamplingParams, n_vocab: int, eog_ids: Iterable[int] = ()) -> None:
        setup = ChainSetup(params, n_vocab, tuple(eog_ids))
        names = tuple(SAMPLERS) if params.samplers is None else params.samplers
        unknown = [name for name in names if name not in SAMPLERS]
        if unknown:
            raise SamplingError(
                f"unknown sampler {', '.join(unknown)}; choose from {', '.join(SAMPLERS)}"
            )
        for token in (*params.logit_bias, *setup.eog_ids):
            _check_token("biased token", token, n_vocab)
        links = [(SAMPLERS[name].label, SAMPLERS[name].create(setup)) for name in names]
        bias = LogitBias.create(setup)
        if bias is not None:
            links.insert(0, (bias.label, bias))
        self._n_vocab = n_vocab
        self._dist = Dist(params.seed)
        self._samplers = [sampler for _, sampler in links if sampler is not None]
        # samplers with a history of tokens
        self._listeners = [s for s in self._samplers if type(s).accept is not Sampler.accept]
        self._greedy = _greedy_prefix(self._samplers)
        # whether the sampled token is the argmax of the (biased) logits
        self._only_argmax = self._greedy is not None and self._greedy in ([], [bias])
        self._bias = bias
        self._head = list(takewhile(lambda sampler: sampler.keeps_all, self._samplers))
        rest = self._samplers[len(self._head) :]
        self._fused = Fused.create(rest, n_vocab) if self._greedy is None else None
        shown = [label if sampler is not None else f"?{label}" for label, sampler in links]
        self._description = " -> ".join(["logits", *shown, self._dist.label])

    @property
    def seed(self) -> int:
        """The seed in use, including a random one."""
        return self._dist.seed

    def sample(self, logits: Floats, argmax: int | None = None) -> int:
        """Sample a token; does not add it to the history, see `accept`.

        Args:
            logits: float32[n_vocab], not written to.
            argmax: index of the largest logit, the first of equal ones or of NaN, if known. The
                logits are then taken from a context without checks.

        Raises:
            SamplingError: the logits have another shape.
        """
        if argmax is None:
            logits = self._checked(logits)
        if self._greedy is None:
            uniform = self._dist.uniform()
            if self._fused is not None:
                edited = self._run(self._head, logits, argmax).logits if self._head else logits
                token = self._fused.pick(edited, uniform)
                if token >= 0:
                    return token
            return self._dist.pick(self._run(self._samplers, logits, argmax), uniform)
        self._dist.skip()
        if self._only_argmax:
            # avoids a copy of all logits
            argmax = int(logits.argmax()) if argmax is None else argmax
            unchanged = self._bias is None or self._bias.keeps_argmax_of(argmax)
            if unchanged and logits.item(argmax) > -inf:
                return argmax
        candidates = self._run(self._greedy, logits, argmax)
        return candidates.token(candidates.argmax())

    def apply(self, logits: Floats) -> Candidates:
        """The candidates that `sample` draws from; consumes no random numbers."""
        return self._run(self._samplers, self._checked(logits))

    def distribution(self, logits: Floats) -> Distribution | None:
        """The distribution of the token that `sample` returns; None for chains without one.

        These are greedy ones: the token is certain, and `sample` finds it faster. The final draw
        consumes no random number.
        """
        if self._greedy is not None:
            return None
        candidates = self._run(self._samplers, self._checked(logits))
        probs = candidates.weights().astype(np.float64)
        return Distribution(candidates.ids, probs / probs.sum())

    def accept(self, token: int) -> None:
        """Add a token of the prompt or of the generation to the history.

        Raises:
            SamplingError: the token is outside the vocabulary.
        """
        if not 0 <= token < self._n_vocab:
            _check_token("accepted token", token, self._n_vocab)
        for sampler in self._listeners:
            sampler.accept(token)

    def mark(self) -> Mark:
        """The state of all samplers and of the random stream, for `rollback`. Costs about 1 us."""
        return tuple(s.mark() for s in self._samplers), self._dist.mark()

    def rollback(self, mark: Mark) -> None:
        """Restore the state at a mark; later marks become invalid."""
        for sampler, state in zip(self._samplers, mark[0], strict=True):
            sampler.rollback(state)
        self._dist.rollback(mark[1])

    def clone(self) -> Chain:
        """An independent copy of the chain and its state."""
        return deepcopy(self)

    def reset(self) -> None:
        """Clear the history and restart the random stream."""
        for sampler in self._samplers:
            sampler.reset()
        self._dist.reset()

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
            while i and samplers[i - 1].keeps_argmax:
                i -= 1
            return samplers[:i]
    return None


def _check_token(what: str, token: int, n_vocab: int) -> None:
    if not 0 <= token < n_vocab:
        raise SamplingError(f"{what} {token} is outside the vocabulary of {n_vocab} tokens")
