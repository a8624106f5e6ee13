"""Sums and maxima over a warp or a block."""

import math

from numba import cuda, float32, int32, uint32

from ..intrin import device, u32

FULL = 0xFFFFFFFF


@device
def warp_sum(v):
    """The sum of all lanes' values, in every lane."""
    d = 16
    while d > 0:
        v += cuda.shfl_xor_sync(FULL, v, d)
        d >>= 1
    return v


@device
def warp_max(v):
    """The largest of all lanes' values, in every lane."""
    d = 16
    while d > 0:
        other = cuda.shfl_xor_sync(FULL, v, d)
        v = other if other > v else v
        d >>= 1
    return v


@device
def warp_top(v):
    """The largest of all lanes' uint32, in every lane."""
    d = 16
    while d > 0:
        v = u32(max(v, u32(cuda.shfl_xor_sync(FULL, int32(v), d))))
        d >>= 1
    return v


@device
def block_sum(v):
    """The sum of all threads' values, in every thread; blocks are whole warps, at most 32."""
    parts = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    v = warp_sum(v)
    if (t & 31) == 0:
        parts[t >> 5] = v
    cuda.syncthreads()
    v = parts[t & 31] if (t & 31) < (cuda.blockDim.x >> 5) else float32(0)
    v = warp_sum(v)
    cuda.syncthreads()  # the memory may be used again
    return v


@device
def block_max(v):
    """The largest of all threads' values, in every thread; blocks are whole warps, at most 32."""
    parts = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    v = warp_max(v)
    if (t & 31) == 0:
        parts[t >> 5] = v
    cuda.syncthreads()
    v = parts[t & 31] if (t & 31) < (cuda.blockDim.x >> 5) else float32(-math.inf)
    v = warp_max(v)
    cuda.syncthreads()
    return v


@device
def block_top(v):
    """The largest of all threads' uint32, in every thread; blocks are whole warps, at most 32."""
    parts = cuda.shared.array(32, uint32)
    t = cuda.threadIdx.x
    v = warp_top(v)
    if (t & 31) == 0:
        parts[t >> 5] = v
    cuda.syncthreads()
    v = parts[t & 31] if (t & 31) < (cuda.blockDim.x >> 5) else uint32(0)
    v = warp_top(v)
    cuda.syncthreads()
    return v
