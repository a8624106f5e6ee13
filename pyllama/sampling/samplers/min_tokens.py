"""A minimum length of the generated text.

SamplingParams(min_tokens=20)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pyllama.sampling.candidates import Candidates
from pyllama.sampling.sampler import ChainSetup, Sampler


class MinTokens(Sampler):
    """Bans the tokens that end a generation until it has some number of tokens.

    Source: vLLM, `SamplingParams.min_tokens`.
    """

    label = "min-tokens"
    keeps_all = True

    def __init__(self, minimum: int, ends: Iterable[int]) -> None:
        self._minimum = minimum
        self._ids = frozenset(ends)
        self._tokens = np.fromiter(self._ids, np.intp, len(self._ids))
        self._n_generated = 0

    @classmethod
    def create(cls, setup: ChainSetup) -> MinTokens | None:
        minimum = setup.params.min_tokens
        ends = [id_ for id_ in (*setup.eog_ids, *setup.stop_ids) if 0 <= id_ < setup.n_vocab]
        return cls(minimum, ends) if minimum > 0 and ends else None

    def keeps_argmax_of(self, token: int) -> bool:
        return self._n_generated >= self._minimum or token not in self._ids

    def apply(self, candidates: Candidates) -> None:
        if self._n_generated < self._minimum:
            logits, positions, _ = candidates.edit(self._tokens)
            logits[positions] = -np.inf

    def accept(self, token: int) -> None:
        self._n_generated += 1

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        pass

    def mark(self) -> int:
        return self._n_generated

    def rollback(self, mark: Any) -> None:
        self._n_generated = mark
