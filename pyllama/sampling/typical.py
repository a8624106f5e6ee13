"""Locally typical sampling: keeps the tokens whose surprise is near the expected one.

Typical(0.9).apply(candidates)

The surprise of a token is ``-log(p)``, and its expectation is the entropy of all tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from pyggml.jit import compiled, inline_strict
from pyggml.pointers import f32_ptr, i32_ptr, i64_ptr
from pyllama.sampling.candidates import Candidates, weight
from pyllama.sampling.sampler import ChainSetup, Sampler
from pyllama.sampling.top import POSITION, Floats, sort_keys, top_positions
from pyllama.sampling.truncation import MAX_COUNT


class Typical(Sampler):
    """Keeps the tokens nearest to the entropy whose probabilities sum to more than p.

    The candidates are then ordered by their distance from the entropy. (In llama.cpp a candidate of
    probability 0 makes all distances NaN; here it is the last one.)

    Source: https://arxiv.org/abs/2202.00666; llama.cpp, `llama_sampler_typical_apply`.
    """

    label = "typical"
    is_stateless = True
    FIRST_SORTED = 256  # usually enough, so that the whole vocabulary is rarely sorted

    def __init__(self, p: float, min_keep: int = 0) -> None:
        self._p = np.float32(p)
        self._min_keep = min_keep
        self.fused_args = float(self._p), min(min_keep, MAX_COUNT), 0

    @classmethod
    def create(cls, setup: ChainSetup) -> Typical | None:
        p = setup.params
        return cls(p.typical_p, p.min_keep) if p.typical_p < 1 else None

    def apply(self, candidates: Candidates) -> None:
        candidates.keep_top(len(candidates))
        probs = candidates.weights()
        probs /= np.float32(_sum(probs.ctypes.data, probs.size))
        with np.errstate(divide="ignore", invalid="ignore"):
            surprise = -np.log(probs)
            terms = probs * surprise
        terms[probs == 0] = 0  # not 0 * inf
        entropy = np.float32(_sum(terms.ctypes.data, terms.size))
        nearness = -np.abs(surprise - entropy)
        n_sorted = max(self.FIRST_SORTED, self._min_keep)
        while True:
            order = top_positions(nearness, n_sorted)
            count = self._count(probs[order])
            if count < n_sorted or n_sorted >= len(candidates):
                break
            n_sorted *= 8
        candidates.keep(order[:count])
        candidates.sorted = False

    def _count(self, probs: Floats) -> int:
        crossing = int(probs.cumsum().searchsorted(self._p, side="right"))
        return max(crossing + 1, self._min_keep)


@compiled(types.float32(types.int64, types.int64))
def _sum(values: Any, n: Any) -> Any:
    """The sum of n float32 in order, with llama.cpp's rounding: tokens are ordered by its bits."""
    values, total = f32_ptr(values), np.float32(0)
    for i in range(n):
        total += values[i]
    return total


@inline_strict
def typical(logits, n, top, p, min_keep, order):  # type: ignore[no-untyped-def]
    """The number of candidates that `Typical` keeps, for `fused`.

    Args:
        top: the largest logit.
        order: address of n int64; the low halves of the first ones become the kept positions.
    """
    distances, bits, order = f32_ptr(order), i32_ptr(order), i64_ptr(order)
    total, entropy = np.float32(0), np.float32(0)
    for i in range(n):
        total += weight(logits, i, top)
    for i in range(n):
        probability = weight(logits, i, top) / total
        if probability > 0:
            entropy -= probability * np.log(probability)
    for i in range(n):
        surprise = -np.log(weight(logits, i, top) / total)
        distances[2 * i] = abs(surprise - entropy)
        order[i] = np.int64(bits[2 * i]) << 32 | i
    sort_keys(order, n)
    running = np.float32(0)
    for i in range(n):
        running += weight(logits, order[i] & POSITION, top) / total
        if running > p and i + 1 >= min_keep:
            return i + 1
    return n
