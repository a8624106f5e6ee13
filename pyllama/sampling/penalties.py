"""Penalties for tokens that were seen lately: repeat, frequency and presence.

    SamplingParams(repeat_penalty=1.1, repeat_last_n=64)

The history is a ring of the last ``repeat_last_n`` accepted tokens, those of the prompt included.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from pyllama.sampling.candidates import Candidates
from pyllama.sampling.params import SamplingParams
from pyllama.sampling.sampler import ChainSetup, Sampler


class Penalties(Sampler):
    """Lowers the logits of the tokens in its history.

    Source: llama.cpp llama-sampler.cpp, `llama_sampler_penalties_apply`.
    """

    label = "penalties"
    keeps_all = True

    def __init__(self, params: SamplingParams) -> None:
        self._repeat = np.float32(params.repeat_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._presence = np.float32(params.presence_penalty)
        last_n = params.repeat_last_n
        self._ring: deque[int] = deque(maxlen=last_n if last_n >= 0 else None)
        self._counts: dict[int, int] = {}

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
        ring, counts = self._ring, self._counts
        if len(ring) == ring.maxlen:
            oldest = ring[0]
            counts[oldest] -= 1
            if counts[oldest] == 0:
                del counts[oldest]
        ring.append(token)
        counts[token] = counts.get(token, 0) + 1

    def reset(self) -> None:
        self._ring.clear()
        self._counts.clear()
