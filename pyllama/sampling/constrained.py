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

from pyggml.jit import compiled
from pyggml.pointers import f32_ptr, i32_ptr
from pyllama.errors import GrammarError
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.chain import Chain, Mark
from pyllama.sampling.dist import Distribution
from pyllama.sampling.params import SamplingParams
from pyllama.sampling.top import Floats

if TYPE_CHECKING:
    from pyllama.grammar import Grammar, Matcher
    from pyllama.tokenizer import Tokenizer


def chain_for(
    params: SamplingParams, n_vocab: int, tokenizer: Tokenizer, grammar: Grammar | None = None
) -> Chain:
    """A chain for one text of a model.

    Raises:
        SamplingError, GrammarError: as `Chain` and ``Grammar.matcher``.
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
        SamplingError: as `Chain`.
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

    def sample(self, logits: Floats, argmax: int | None = None) -> int:
        """See `Chain.sample`.

        Raises:
            GrammarError: the grammar allows no token, or is too ambiguous.
        """
        if argmax is None:
            logits = self._checked(logits)
        token, matcher = super().sample(logits, argmax), self._matcher
        if not self._applies or matcher.allows(token):
            return token
        argmax = constrain(logits, matcher.mask(), self._restricted)
        token = super().sample(self._restricted, argmax) if argmax >= 0 else -1
        if matcher.allows(token):
            return token
        # all allowed tokens are banned, by their logits or by a sampler
        if matcher.is_accepting and matcher.vocabulary.eog:
            return matcher.vocabulary.eog[0]
        raise GrammarError("the grammar allows no token here, or only tokens whose logits are -inf")

    def apply(self, logits: Floats) -> Candidates:
        """See `Chain.apply`; tokens that the grammar does not allow have logits of -inf."""
        if not self._applies:
            return super().apply(logits)
        restricted = np.empty(self._n_vocab, np.float32)
        constrain(self._checked(logits), self._matcher.mask(), restricted)
        return super().apply(restricted)

    def distribution(self, logits: Floats) -> Distribution | None:
        """See `Chain.distribution`.

        A token that the grammar allows is sampled from all logits, and, if that one was not
        allowed, from the restricted logits:
        p(x) = p_all(x) + (1 - sum of p_all over the allowed tokens) * p_restricted(x).
        """
        whole, matcher = super().distribution(logits), self._matcher
        if whole is None or not self._applies:
            return whole
        mask = matcher.mask()
        allowed = (mask[whole.ids >> 5] >> (whole.ids & 31).astype(np.uint32) & 1).astype(bool)
        probs = np.zeros(self._n_vocab)
        probs[whole.ids[allowed]] = whole.probs[allowed]
        left = 1 - whole.probs[allowed].sum()
        if left > 0 and not allowed.all():
            argmax = constrain(self._checked(logits), mask, self._restricted)
            other = super().distribution(self._restricted) if argmax >= 0 else None
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
        """See `Chain.mark`."""
        return *super().mark(), self._matcher.mark()

    def rollback(self, mark: Mark) -> None:
        """See `Chain.rollback`."""
        super().rollback(mark)
        self._matcher.rollback(mark[2])

    def reset(self) -> None:
        """See `Chain.reset`."""
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


@compiled(types.int64(*[types.int64] * 5))
def _constrain(logits: Any, n: Any, bits: Any, n_words: Any, restricted: Any) -> Any:
    logits, bits, restricted = f32_ptr(logits), i32_ptr(bits), f32_ptr(restricted)
    nothing = np.float32(-np.inf)
    top, argmax = nothing, -1
    for word in range((n + 31) // 32):
        first = 32 * word
        last = min(first + 32, n)
        set_bits = np.int64(bits[word]) if word < n_words else np.int64(0)
        if set_bits == 0:
            for i in range(first, last):
                restricted[i] = nothing
            continue
        block = nothing
        for i in range(first, last):
            logit = logits[i] if (set_bits >> (i - first)) & 1 else nothing
            logit = logit if logit == logit else nothing
            restricted[i] = logit
            block = max(block, logit)
        if block > top:
            top, argmax = block, first
            while restricted[argmax] != top:
                argmax += 1
    return argmax
