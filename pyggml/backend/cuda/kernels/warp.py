"""Sums and maxima over a warp or a block, in every thread; blocks are whole warps, at most 32."""

import math
from collections.abc import Callable
from typing import Any

from numba import cuda, float32, int32, int64

from ..intrin import device

FULL = 0xFFFFFFFF


def reducers(combine: Callable[[Any, Any], Any], none: Any, type: Any) -> tuple[Any, Any]:
    """Device functions that combine the values of a warp and of a block.

    Args:
        none: changes nothing.
        type: of the values.
    """
    combine = device(combine)

    @device
    def of_warp(v):
        d = 16
        while d > 0:
            v = combine(v, cuda.shfl_xor_sync(FULL, v, d))
            d >>= 1
        return v

    @device
    def of_block(v):
        parts = cuda.shared.array(32, type)
        t = cuda.threadIdx.x
        v = of_warp(v)
        if (t & 31) == 0:
            parts[t >> 5] = v
        cuda.syncthreads()
        v = of_warp(parts[t & 31] if (t & 31) < (cuda.blockDim.x >> 5) else type(none))
        cuda.syncthreads()  # the memory may be used again
        return v

    return of_warp, of_block


def _add(a, b):
    return a + b


def _larger(a, b):
    return b if b > a else a


warp_sum, block_sum = reducers(_add, 0.0, float32)
warp_max, block_max = reducers(_larger, -math.inf, float32)
_, block_count = reducers(_add, 0, int64)
_, block_top = reducers(_larger, 0, int32)  # of numbers that are not negative
_, block_best = reducers(_larger, -(1 << 63), int64)
