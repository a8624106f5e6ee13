"""Samplers that remove unlikely tokens: top-k, top-p, min-p.

    candidates = Candidates(logits)
    TopK(40).apply(candidates)
    TopP(0.95).apply(candidates)

All keep the likeliest token. TopK and TopP sort the candidates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyggml.compiler.jit import inline_strict
from pyllama.sampling.candidates import Candidates, weight
from pyllama.sampling.float_math import log_of
from pyllama.sampling.sampler import ChainSetup, Sampler
from pyllama.sampling.top import top_positions

MAX_COUNT = 2**53  # counts are passed to `fused` as float64


class TopK(Sampler):
    """Keeps the k largest logits; the lowest ids of equal ones.

    Source: llama.cpp llama-sampler.cpp, `llama_sampler_top_k_impl`.
    """

    label = "top-k"
    keeps_argmax = True
    is_stateless = True

    def __init__(self, k: int) -> None:
        self.k = k
        self.fused_args = min(k, MAX_COUNT), 0, 0

    @classmethod
    def create(cls, setup: ChainSetup) -> TopK | None:
        return cls(setup.params.top_k) if setup.params.top_k > 0 else None

    def apply(self, candidates: Candidates) -> None:
        candidates.keep_top(self.k)


class TopP(Sampler):
    """Keeps the smallest set of likeliest tokens whose probabilities sum to at least p.

    Source: https://arxiv.org/abs/1904.09751; llama.cpp, `llama_sampler_top_p_apply`.
    """

    label = "top-p"
    keeps_argmax = True
    is_stateless = True
    FIRST_SORTED = 256  # usually enough, so that the whole vocabulary is rarely sorted

    def __init__(self, p: float, min_keep: int = 0) -> None:
        self._p = np.float32(p)
        self._min_keep = min_keep
        self.fused_args = float(self._p), min(min_keep, MAX_COUNT), 0

    @classmethod
    def create(cls, setup: ChainSetup) -> TopP | None:
        p = setup.params
        return cls(p.top_p, p.min_keep) if p.top_p < 1 else None

    def apply(self, candidates: Candidates) -> None:
        probs = candidates.probs()
        if candidates.sorted:
            candidates.keep(slice(self._count(probs)))
            return
        n_sorted = max(self.FIRST_SORTED, self._min_keep)
        while True:
            order = top_positions(candidates.logits, n_sorted)
            count = self._count(probs[order])
            if count < n_sorted or n_sorted >= len(candidates):
                break
            n_sorted *= 8
        candidates.keep(order[:count])
        candidates.sorted = True

    def _count(self, probs: np.ndarray[tuple[int], np.dtype[np.float32]]) -> int:
        crossing = int(probs.cumsum().searchsorted(self._p))
        return max(crossing + 1, self._min_keep)


@inline_strict
def top_p(logits: Any, n: Any, p: Any, min_keep: Any) -> Any:
    """The number of candidates that `TopP` keeps of n descending logits, for `fused`."""
    total, running = np.float32(0), np.float32(0)
    for i in range(n):
        total += weight(logits, i, logits[0])
    for i in range(n):
        running += weight(logits, i, logits[0]) / total
        if running >= p and i + 1 >= min_keep:
            return i + 1
    return n


class MinP(Sampler):
    """Keeps the tokens with at least p times the probability of the likeliest.

    Source: https://arxiv.org/abs/2407.01082; llama.cpp, `llama_sampler_min_p_apply`.
    """

    label = "min-p"
    keeps_argmax = True
    is_stateless = True

    def __init__(self, p: float, min_keep: int = 0) -> None:
        self._distance = log_of(np.array([p], np.float32))[0]
        self._min_keep = max(min_keep, 1)
        self.fused_args = float(self._distance), min(self._min_keep, MAX_COUNT), 0

    @classmethod
    def create(cls, setup: ChainSetup) -> MinP | None:
        p = setup.params
        return cls(p.min_p, p.min_keep) if p.min_p > 0 else None

    def apply(self, candidates: Candidates) -> None:
        logits = candidates.logits
        likely = logits >= logits[candidates.argmax()] + self._distance
        count = int(np.count_nonzero(likely))
        if count < self._min_keep:
            candidates.keep_top(self._min_keep)
        elif candidates.sorted:
            candidates.keep(slice(count))
        elif count < len(candidates):
            candidates.keep(likely)


@inline_strict
def min_p(logits: Any, n: Any, distance: Any, min_keep: Any) -> Any:
    """The number of candidates that `MinP` keeps of n descending logits, for `fused`."""
    limit, kept = logits[0] + np.float32(distance), 0
    while kept < n and (logits[kept] >= limit or kept < min_keep):
        kept += 1
    return kept
