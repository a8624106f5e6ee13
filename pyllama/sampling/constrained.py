"""A sampling chain under a grammar.

    chain = chain_for(params, n_vocab, tokenizer, grammar)
    token = chain.sample(logits)    # one that the grammar allows
    chain.accept(token)

The sampled token is checked; if the grammar does not allow it, another one is sampled from the
logits of the tokens that it allows, with the next random number, as llama.cpp does. Within
reasoning that a budget limits, a lazy grammar does not apply. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from pyggml.compiler.jit import inline_strict, jitted
from pyggml.compiler.pointers import i32_ptr
from pyllama.errors import GrammarError, SamplingError, TextComplete
from pyllama.parameters.sampling import SamplingParams
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.chain import Chain, Mark
from pyllama.sampling.samplers.dist import Distribution
from pyllama.sampling.top import INF_RANK, Floats, rank_of

if TYPE_CHECKING:
    from pyllama.grammar import Grammar, Matcher
    from pyllama.tokenizer import Tokenizer

_MINUS_INF = np.int32(-0x800000)  # the bits of float32's -inf


def chain_for(
    params: SamplingParams, n_vocab: int, tokenizer: Tokenizer, grammar: Grammar | None = None
) -> Chain:
    """A chain for one text of a model.

    Raises:
        SamplingError, GrammarError: as `ConstrainedChain` and ``Grammar.matcher``.
    """
    stop_ids = params.stop_token_ids
    if grammar is None:
        return Chain(params, n_vocab, tokenizer.eog, stop_ids=stop_ids, tokenizer=tokenizer)
    return ConstrainedChain(
        params, n_vocab, tokenizer.eog,
        matcher=grammar.matcher(tokenizer), stop_ids=stop_ids, tokenizer=tokenizer,
    )  # fmt: skip


class ConstrainedChain(Chain):
    """A chain whose generated tokens match a grammar.

    Args:
        matcher: the state of the grammar.
        params, n_vocab, eog_ids, stop_ids, tokenizer: see `Chain`.

    Raises:
        SamplingError: as `Chain`; or the text begins within reasoning that has a budget, but the
            grammar does not allow its end.
    """

    def __init__(
        self,
        params: SamplingParams,
        n_vocab: int,
        eog_ids: Iterable[int] = (),
        *,
        matcher: Matcher,
        stop_ids: Iterable[int] = (),
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(params, n_vocab, eog_ids, stop_ids=stop_ids, tokenizer=tokenizer)
        self._matcher = matcher
        self._restricted = np.empty(n_vocab, np.float32)  # work memory
        self._check_reasoning()

    def _check_reasoning(self) -> None:
        """Raise an error if the reasoning has begun in the prompt and the grammar forbids its end.

        Such a grammar was written for the text after the reasoning.
        """
        reasoning, matcher = self.reasoning, self._matcher
        if reasoning is None or matcher.is_lazy or reasoning.state in ("idle", "done"):
            return
        mark = matcher.mark()
        for token in reasoning.forced:
            if not matcher.allows(token):
                raise SamplingError(
                    "the prompt ends within reasoning that has a budget, and the grammar does not "
                    "allow the end of the reasoning; use reasoning_budget=-1 and a prompt without "
                    "reasoning (enable_thinking=False), or a grammar that begins with it"
                )
            matcher.accept(token)
        matcher.rollback(mark)

    @property
    def matcher(self) -> Matcher | None:
        return self._matcher if self._applies else None

    def sample(self, logits: Floats, argmax: int | None = None) -> int:
        """See `Chain.sample`.

        Raises:
            TextComplete: the text must end, but the vocabulary has no token for it.
            GrammarError: the grammar allows no token, or is too ambiguous.
        """
        if argmax is None:
            logits = self._checked(logits)
        token, matcher = super().sample(logits, argmax), self._matcher
        if not self._applies or matcher.allows(token):
            return token
        argmax = constrain(logits, matcher.mask(), self._restricted)
        token = super().sample(self._restricted, argmax) if argmax >= 0 else -1
        reasoning = self.reasoning
        if matcher.allows(token) and (reasoning is None or reasoning.keeps_argmax_of(token)):
            return token
        # all allowed tokens are banned, by their logits or by a sampler
        if matcher.is_accepting and matcher.vocabulary.eog:
            return matcher.vocabulary.eog[0]
        if matcher.is_accepting:
            raise TextComplete(
                "the text is a whole one of the grammar, but the vocabulary has no "
                "end-of-generation token; end it by max_tokens or a stop string"
            )
        raise GrammarError(self._why_none())

    def _why_none(self) -> str:
        """Why no token can be sampled."""
        matcher, reasoning = self._matcher, self.reasoning
        if reasoning is not None and reasoning.state == "forcing":
            return (
                "the reasoning budget is spent, but the grammar does not allow the tokens that end "
                "the reasoning; use no budget, or a grammar that allows them"
            )
        if not matcher.mask().any():
            return (
                "the grammar allows no token here: the vocabulary lacks the text that must follow"
            )
        return (
            "the grammar allows no token here but banned ones: their logits are -inf, by "
            "logit_bias, allowed_token_ids, bad_words, another sampler or the model"
        )

    def apply(self, logits: Floats) -> Candidates:
        """See `Chain.apply`; tokens that the grammar does not allow have logits of -inf."""
        if not self._applies:
            return super().apply(logits)
        restricted = np.empty(self._n_vocab, np.float32)
        constrain(self._checked(logits), self._matcher.mask(), restricted)
        return super().apply(restricted)

    def distribution(self, logits: Floats, argmax: int | None = None) -> Distribution | None:
        """See `Chain.distribution`.

        A token that the grammar allows is sampled from all logits, and, if that one was not
        allowed, from the restricted logits:
        p(x) = p_all(x) + (1 - sum of p_all over the allowed tokens) * p_restricted(x).
        """
        whole, matcher = super().distribution(logits, argmax), self._matcher
        if whole is None or not self._applies:
            return whole
        mask = matcher.mask()
        allowed = (mask[whole.ids >> 5] >> (whole.ids & 31).astype(np.uint32) & 1).astype(bool)
        probs = np.zeros(self._n_vocab)
        probs[whole.ids[allowed]] = whole.probs[allowed]
        left = 1 - whole.probs[allowed].sum()
        if left > 0 and not allowed.all():
            argmax = constrain(self._checked(logits), mask, self._restricted)
            other = super().distribution(self._restricted, argmax) if argmax >= 0 else None
            if other is None:
                return None
            probs[other.ids] += left * other.probs
        ids = probs.nonzero()[0].astype(np.int32)
        return Distribution(ids, probs[ids])

    def accept(self, token: int) -> None:
        """See `Chain.accept`; the grammar advances too.

        Raises:
            GrammarError: the grammar does not allow the token.
        """
        applied = self._applies
        if applied:
            self._matcher.accept(token)
        super().accept(token)
        if not applied and self._applies:
            # the end of the reasoning may contain the trigger of the grammar
            assert self.reasoning is not None
            for end in self.reasoning.end_match or ():
                self._matcher.accept(end)

    @property
    def _applies(self) -> bool:
        """Whether the grammar applies to the next token."""
        reasoning = self.reasoning
        return reasoning is None or not self._matcher.is_lazy or reasoning.state in ("idle", "done")

    def mark(self) -> Mark:
        return *super().mark(), self._matcher.mark()

    def rollback(self, mark: Mark) -> None:
        super().rollback(mark)
        self._matcher.rollback(mark[2])

    def reset(self) -> None:
        super().reset()
        self._matcher.reset()


def constrain(logits: Floats, bits: NDArray[np.uint32], restricted: Floats) -> int:
    """Copy the logits of a set of tokens, and write -inf for all others and for NaN.

    Args:
        logits: float32[n_vocab], contiguous.
        bits: uint32[n_words], a bit per token, the lowest first; tokens without a bit are not in
            the set.
        restricted: float32[n_vocab], contiguous, is overwritten.

    Returns:
        The index of the largest logit of the set, the first of equal ones; -1 if all are -inf.
    """
    argmax: int = _constrain(
        logits.ctypes.data, logits.size, bits.ctypes.data, bits.size, restricted.ctypes.data
    )
    return argmax


@jitted(types.int64(*[types.int64] * 5), nogil=False)
def _constrain(logits: Any, n: Any, bits: Any, n_words: Any, restricted: Any) -> Any:
    logits, bits, restricted = i32_ptr(logits), i32_ptr(bits), i32_ptr(restricted)
    top, top_word, n_whole = np.int32(INF_RANK), -1, n // 32
    for word in range((n + 31) // 32):
        first = 32 * word
        set_bits = bits[word] if word < n_words else np.int32(0)
        if set_bits == 0:
            for i in range(first, min(first + 32, n)):
                restricted[i] = _MINUS_INF
            continue
        if word < n_whole:  # a constant number, so that LLVM makes vectors
            best = _restrict(logits, first, 32, set_bits, restricted)
        else:
            best = _restrict(logits, first, n - first, set_bits, restricted)
        if best < top:
            top, top_word = best, word
    if top_word < 0:
        return -1
    argmax = 32 * top_word
    while rank_of(restricted[argmax]) != top:
        argmax += 1
    return argmax


@inline_strict
def _restrict(logits: Any, first: Any, n: Any, set_bits: Any, restricted: Any) -> Any:
    """Write up to 32 logits, all as bits of float32; returns the best rank of the set."""
    best = np.int32(INF_RANK)
    for i in range(n):
        logit = logits[first + i]
        bit = np.int32(set_bits >> np.int32(i)) & np.int32(1)
        rank = rank_of(logit) if bit != 0 else np.int32(INF_RANK)
        restricted[first + i] = logit if rank < INF_RANK else _MINUS_INF
        best = min(best, rank)
    return best
