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
from pyllama.sampling.top import POSITION, sort_keys
from pyllama.sampling.truncation import MAX_COUNT


class Typical(Sampler):
    """Keeps the tokens nearest to the entropy whose probabilities sum to more than p.

    The candidates are then ordered by their distance from the entropy. (In llama.cpp a candidate of
    probability 0 makes all distances NaN; here it is the last one.)

    Source: https://arxiv.org/abs/2202.00666; llama.cpp, `llama_sampler_typical_apply`.
    """

    label = "typical"
    is_stateless = True

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
            log_probs = np.log(probs)
            work = probs * log_probs
        if not probs[-1]:
            work[probs == 0] = 0  # not 0 * inf
        entropy = np.float32(-_sum(work.ctypes.data, work.size))
        distances = np.abs(np.add(log_probs, entropy, out=work), out=work)
        order, min_keep = np.empty(probs.size, np.int64), min(self._min_keep, MAX_COUNT)
        addresses = [x.ctypes.data for x in (distances, probs, order)]
        count = _nearest(*addresses, probs.size, float(self._p), min_keep)
        candidates.keep(order[:count])
        candidates.sorted = False


@compiled(types.int64(*[types.int64] * 4, types.float64, types.int64))
def _nearest(distances: Any, probs: Any, order: Any, n: Any, p: Any, min_keep: Any) -> Any:
    """The number of candidates that are kept, and their positions in ``order``.

    With descending probabilities the distances fall to the nearest one and then rise, so the order
    is that of a merge of both sides: no sorting. Of equal distances the first position is first.
    """
    distances, probs, order = f32_ptr(distances), f32_ptr(probs), i64_ptr(order)
    right, count, running = 0, 0, np.float32(0)
    for i in range(1, n):
        if distances[i] < distances[right]:
            right = i
    left = right  # the positions from here to `right` are in order
    while count < n:
        first, end = right, right + 1
        if left > 0 and (right == n or distances[left - 1] <= distances[right]):
            first, end = left - 1, left
            while first > 0 and distances[first - 1] == distances[end - 1]:
                first -= 1
            left = first
        else:
            right = end
        for i in range(first, end):
            order[count] = i
            count += 1
            running += probs[i]
            if running > p and count >= min_keep:
                return count
    return n


@compiled(types.float32(types.int64, types.int64))
def _sum(values: Any, n: Any) -> Any:
    """The sum of n float32 in order, with llama.cpp's rounding: tokens are ordered by its bits."""
    values, total = f32_ptr(values), np.float32(0)
    for i in range(n):
        total += values[i]
    return total


@inline_strict
def typical(logits: Any, n: Any, top: Any, p: Any, min_keep: Any, order: Any) -> Any:
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
