"""Locally typical sampling: keeps the tokens whose surprise is near the expected one.

Typical(0.9).apply(candidates)

The surprise of a token is ``-log(p)``, and its expectation is the entropy of all tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from pyggml.compiler.jit import inline_strict, jitted
from pyggml.compiler.pointers import f32_ptr, i32_ptr, i64_ptr
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.float_math import log_all
from pyllama.sampling.sampler import ChainSetup, Sampler
from pyllama.sampling.samplers.truncation import MAX_COUNT
from pyllama.sampling.std_sort import SMALL, heap_sort, insertion_sort, partition

MAX_STACK = 64  # of the parts that wait to be sorted


class Typical(Sampler):
    """Keeps the tokens nearest to the entropy whose probabilities sum to more than p.

    The candidates are then ordered by their distance from the entropy, equal distances as by
    libstdc++'s ``std::sort``. As in llama.cpp a candidate of probability 0 makes all distances NaN:
    then the candidates that are kept are no longer the nearest ones.

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
        probs, min_keep = candidates.probs(), min(self._min_keep, MAX_COUNT)
        distances, order = np.empty_like(probs), np.empty(probs.size, np.int32)
        stack = np.empty(MAX_STACK, np.int64)
        addresses = [x.ctypes.data for x in (distances, order, stack)]
        count = _nearest(probs.ctypes.data, probs.size, float(self._p), min_keep, *addresses)
        candidates.keep(order[:count])
        candidates.sorted = False


@inline_strict
def typical(
    probs: Any, n: Any, p: Any, min_keep: Any, distances: Any, order: Any, stack: Any
) -> Any:
    """The number of candidates that `Typical` keeps of n; ``order`` begins with their positions.

    Only the part of the order that is needed is sorted.

    Args:
        probs: address of float32[n], descending.
        distances: address of memory for float32[n].
        order: address of memory for int32[n].
        stack: address of memory for int64[`MAX_STACK`], or for n / 2.
    """
    log_all(probs, n, distances)
    probs, distances = f32_ptr(probs), f32_ptr(distances)
    order, stack = i32_ptr(order), i64_ptr(stack)
    entropy = np.float32(0)
    for i in range(n):
        entropy += -probs[i] * distances[i]
    for i in range(n):
        distances[i] = abs(-distances[i] - entropy)
        order[i] = i
    first, last, n_waiting, depth, size, running = 0, n, 0, 0, n, np.float32(0)
    while size > 1:
        size >>= 1
        depth += 2
    while first < n:
        while last - first > SMALL:
            if depth == 0:
                heap_sort(distances, order, first, last)
                break
            depth -= 1
            stack[n_waiting] = last << 8 | depth
            n_waiting += 1
            last = partition(distances, order, first, last)
        insertion_sort(distances, order, first, last)
        for i in range(first, last):
            running += probs[order[i]]
            if running > p and i + 1 >= min_keep:
                return i + 1
        first = last
        if n_waiting > 0:
            n_waiting -= 1
            last, depth = stack[n_waiting] >> 8, stack[n_waiting] & 255
    return n


@jitted(types.int64(types.int64, types.int64, types.float64, *[types.int64] * 4), nogil=False)
def _nearest(
    probs: Any, n: Any, p: Any, min_keep: Any, distances: Any, order: Any, stack: Any
) -> Any:
    return typical(probs, n, p, min_keep, distances, order, stack)
