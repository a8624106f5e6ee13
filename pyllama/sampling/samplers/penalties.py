"""Penalties for recent tokens: repeat, frequency and presence.

    SamplingParams(repeat_penalty=1.1, repeat_last_n=64)

They apply to the last ``repeat_last_n`` accepted tokens, including those of the prompt.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyllama.parameters.sampling import SamplingParams
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.sampler import ChainSetup, Sampler


class Penalties(Sampler):
    """Lowers the logits of recent tokens.

    Source: llama.cpp llama-sampler.cpp, `llama_sampler_penalties_apply`.
    """

    label = "penalties"
    keeps_all = True

    def __init__(self, params: SamplingParams) -> None:
        self._repeat = np.float32(params.repeat_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._last_n = params.repeat_last_n
        self._tokens: list[int] = []  # the whole history, for `rollback`
        self._counts: dict[int, int] = {}  # counts of the last repeat_last_n tokens

    @classmethod
    def create(cls, setup: ChainSetup) -> Penalties | None:
        p = setup.params
        effect = p.repeat_penalty != 1 or p.frequency_penalty != 0 or p.presence_penalty != 0
        return cls(p) if effect and p.repeat_last_n != 0 else None

    def apply(self, candidates: Candidates) -> None:
        counts = self._counts
        if not counts:
            return
        logits, positions, found = candidates.edit(np.fromiter(counts, np.intp, len(counts)))
        count = np.fromiter(counts.values(), np.float32, len(counts))[found]
        seen = logits[positions]
        seen = np.where(seen <= 0, seen * self._repeat, seen / self._repeat)
        logits[positions] = seen - (count * self._frequency + self._presence)

    def accept(self, token: int) -> None:
        tokens, counts = self._tokens, self._counts
        if 0 <= self._last_n <= len(tokens):
            self._uncount(tokens[len(tokens) - self._last_n])
        tokens.append(token)
        counts[token] = counts.get(token, 0) + 1

    def mark(self) -> int:
        return len(self._tokens)

    def rollback(self, mark: Any) -> None:
        tokens, counts = self._tokens, self._counts
        while len(tokens) > mark:
            self._uncount(tokens.pop())
            if 0 <= self._last_n <= len(tokens):
                returned = tokens[len(tokens) - self._last_n]
                counts[returned] = counts.get(returned, 0) + 1

    def _uncount(self, token: int) -> None:
        self._counts[token] -= 1
        if not self._counts[token]:
            del self._counts[token]
