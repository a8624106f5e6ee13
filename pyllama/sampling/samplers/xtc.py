"""XTC, "exclude top choices": sometimes removes all likely tokens but the least likely of them.

Xtc(probability=0.5, threshold=0.1, min_keep=0, seed=42).apply(candidates)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyggml.compiler.jit import inline_strict
from pyllama.sampling.candidates import Candidates, weight
from pyllama.sampling.rng import Mt19937
from pyllama.sampling.sampler import ChainSetup, Sampler
from pyllama.sampling.samplers.truncation import MAX_COUNT

MAX_THRESHOLD = 0.5  # two tokens cannot both have more


class Xtc(Sampler):
    """With some probability, removes the tokens of at least a threshold, except the last of them.

    It has a random stream of its own, with the seed of the final draw.

    Source: llama.cpp llama-sampler.cpp, `llama_sample_xtc_apply`.
    """

    label = "xtc"

    def __init__(self, probability: float, threshold: float, min_keep: int, seed: int) -> None:
        self._probability, self._threshold = np.float32(probability), np.float32(threshold)
        self._min_keep = min_keep
        self._rng = Mt19937(seed)
        self._uniform: float | None = None  # the next number of the stream, if it was drawn
        self.fused_args = float(self._threshold), min(min_keep, MAX_COUNT), 0

    @classmethod
    def create(cls, setup: ChainSetup) -> Xtc | None:
        p = setup.params
        if p.xtc_probability <= 0 or p.xtc_threshold > MAX_THRESHOLD:
            return None
        return cls(p.xtc_probability, p.xtc_threshold, p.min_keep, setup.seed)

    def is_due(self) -> bool:
        """Whether the next random number lets it act; `consume` draws another one."""
        if self._uniform is None:
            self._uniform = self._rng.uniform_float()
        return bool(self._uniform <= self._probability)

    def consume(self) -> None:
        """Consume the random number of `is_due`."""
        self._uniform = None

    def apply(self, candidates: Candidates) -> None:
        if len(candidates) < 2:
            return
        due = self.is_due()
        self.consume()
        if not due:
            return
        candidates.keep_top(len(candidates))
        n_removed = int(np.count_nonzero(candidates.probs() >= self._threshold)) - 1
        if n_removed > 0 and len(candidates) - n_removed >= self._min_keep:
            candidates.keep(slice(n_removed, None))

    def mark(self) -> Any:
        return self._rng.mark(), self._uniform

    def rollback(self, mark: Any) -> None:
        stream, self._uniform = mark
        self._rng.rollback(stream)


@inline_strict
def xtc(logits: Any, n: Any, threshold: Any, min_keep: Any) -> Any:
    """The number of candidates that `Xtc` removes of n descending logits, for `fused`."""
    total, n_likely = np.float32(0), 0
    for i in range(n):
        total += weight(logits, i, logits[0])
    while n_likely < n and weight(logits, n_likely, logits[0]) / total >= threshold:
        n_likely += 1
    return n_likely - 1 if n_likely > 1 and n - n_likely + 1 >= min_keep else 0
