"""The sampler of `Llama.sample`, which samples single tokens.

    sampler = StepSampler(make_chain)
    token = sampler.sample(params, tokens, logits)

Consecutive calls with equal parameters on a growing text share one chain and its random stream;
the tokens of the first call are the prompt, which a grammar does not see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..engine.request import Floats
from ..grammar import Grammar
from ..sampling import Chain, LogitsProcessor, SamplingParams, apply_logits_processors


class StepSampler:
    """Samples tokens; keeps the chain of the last call.

    Args:
        make_chain: makes a chain of samplers.
    """

    def __init__(self, make_chain: Callable[[SamplingParams, Grammar | None], Chain]) -> None:
        self._make_chain = make_chain
        self._setup: tuple[SamplingParams, Grammar | None] | None = None
        self._accepted: list[int] = []
        self._chain: Chain

    def sample(
        self,
        params: SamplingParams,
        tokens: list[int],
        logits: Floats,
        processors: Sequence[LogitsProcessor] = (),
        grammar: Grammar | None = None,
    ) -> int:
        """Sample the token after ``tokens``.

        Args:
            logits: float32[n_vocab] of the last token.
            processors: applied to the logits first.
            grammar: what the text after the prompt must match.
        """
        setup = params, grammar
        if self._setup != setup or tokens[: len(self._accepted)] != self._accepted:
            self._setup, self._chain = setup, self._make_chain(params, grammar)
            self._chain.accept_prompt(tokens)
        else:
            for token in tokens[len(self._accepted) :]:
                self._chain.accept(token)
        self._accepted = tokens
        if processors:
            logits = apply_logits_processors(processors, np.array(tokens, np.intc), logits)
        return self._chain.sample(logits)
