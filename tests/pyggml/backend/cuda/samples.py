"""Kernels that only the tests of the engines run: reductions, dp4a, ballots, and faulty ones."""

import math
from collections.abc import Callable

import numpy as np
from numba import cuda, float32, int32, int64, types, uint32

from pyggml.backend.cuda import intrin
from pyggml.backend.cuda.intrin import (
    assembly,
    device,
    dot4_us,
    load_u16,
    load_u32x4,
    u32,
)
from pyggml.backend.cuda.kernel import F32, I32, KERNELS, U8, GpuKernel, f32, i32, i64, kernel

from .intrinsics import python_stand_in

_FULL = 0xFFFFFFFF
_LOW = uint32(0x0F0F0F0F)
_NONE = float32(-3.0e38)


def sample(threads: int = 256) -> Callable[[Callable[..., None]], GpuKernel]:
    """A kernel that is not among those of the backend."""

    def make(function: Callable[..., None]) -> GpuKernel:
        made = kernel(f"sample_{function.__name__}", threads=threads)(function)
        return KERNELS.pop(made.name)

    return make


@device
def warp_sum(v):
    d = 16
    while d > 0:
        v += cuda.shfl_xor_sync(_FULL, v, d)
        d >>= 1
    return v


@device
def warp_max(v):
    d = 16
    while d > 0:
        other = cuda.shfl_xor_sync(_FULL, v, d)
        v = other if other > v else v
        d >>= 1
    return v


@device
def block_sum(v):
    parts = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    v = warp_sum(v)
    if t & 31 == 0:
        parts[t >> 5] = v
    cuda.syncthreads()
    r = parts[t & 31] if (t & 31) < (cuda.blockDim.x >> 5) else float32(0)
    r = warp_sum(r)
    cuda.syncthreads()  # before parts is used again
    return r


@device
def block_max(v):
    parts = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    v = warp_max(v)
    if t & 31 == 0:
        parts[t >> 5] = v
    cuda.syncthreads()
    r = parts[t & 31] if (t & 31) < (cuda.blockDim.x >> 5) else _NONE
    r = warp_max(r)
    cuda.syncthreads()
    return r


@sample()
def scale(x: F32, y: F32, n: i32, s: f32):
    i = cuda.grid(1)
    if i < n:
        y[i] = s * x[i]


@sample()
def rms_norm(x: F32, w: F32, y: F32, n: i32, eps: f32):
    """A block a row."""
    row = int64(cuda.blockIdx.x) * n
    s = float32(0)
    i = cuda.threadIdx.x
    while i < n:
        v = x[row + i]
        s += v * v
        i += cuda.blockDim.x
    r = intrin.rsqrt(block_sum(s) / float32(n) + eps)
    i = cuda.threadIdx.x
    while i < n:
        y[row + i] = x[row + i] * r * w[i]
        i += cuda.blockDim.x


@sample()
def softmax(x: F32, y: F32, lengths: I32, stride: i32, scale: f32):
    """Of the first lengths[0] elements of each row."""
    n = lengths[0]
    row = int64(cuda.blockIdx.x) * stride
    m = _NONE
    i = cuda.threadIdx.x
    while i < n:
        v = x[row + i] * scale
        m = v if v > m else m
        i += cuda.blockDim.x
    m = block_max(m)
    s = float32(0)
    i = cuda.threadIdx.x
    while i < n:
        e = math.exp(x[row + i] * scale - m)
        y[row + i] = e
        s += e
        i += cuda.blockDim.x
    r = float32(1) / block_sum(s)
    i = cuda.threadIdx.x
    while i < n:
        y[row + i] *= r
        i += cuda.blockDim.x


@sample()
def mul_mat_vec_q4(codes: U8, scales: i64, x: U8, d: F32, sums: F32, y: F32, nb: i32, rows: i32):
    """Q4_0 in planes (16 bytes a block; scales as halves) times int8, a warp a row."""
    lane = cuda.threadIdx.x & 31
    row = cuda.blockIdx.x * (cuda.blockDim.x >> 5) + (cuda.threadIdx.x >> 5)
    if row >= rows:
        return
    acc = float32(0)
    b = lane
    while b < nb:
        at = int64(row) * nb + b
        w0, w1, w2, w3 = load_u32x4(codes, 16 * at)
        a0, a1, a2, a3 = load_u32x4(x, 32 * b)
        b0, b1, b2, b3 = load_u32x4(x, 32 * b + 16)
        s = dot4_us(u32(w0 & _LOW), a0, int32(0))
        s = dot4_us(u32((w0 >> uint32(4)) & _LOW), b0, s)
        s = dot4_us(u32(w1 & _LOW), a1, s)
        s = dot4_us(u32((w1 >> uint32(4)) & _LOW), b1, s)
        s = dot4_us(u32(w2 & _LOW), a2, s)
        s = dot4_us(u32((w2 >> uint32(4)) & _LOW), b2, s)
        s = dot4_us(u32(w3 & _LOW), a3, s)
        s = dot4_us(u32((w3 >> uint32(4)) & _LOW), b3, s)
        half = intrin.half_to_float(load_u16(codes, scales + 2 * at))
        acc += half * (d[b] * float32(s) - float32(8) * sums[b])
        b += 32
    acc = warp_sum(acc)
    if lane == 0:
        y[row] = acc


@sample()
def compact(x: F32, least: f32, n: i32, ids: I32, count: I32):
    """ids[:count] = the i with x[i] >= least, in order; of one block."""
    totals = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    warp = t >> 5
    on = False
    if t < n:
        on = x[t] >= least
    mask = cuda.ballot_sync(_FULL, on)
    if t & 31 == 0:
        totals[warp] = cuda.popc(mask)
    cuda.syncthreads()
    before = int32(0)
    for k in range(warp):
        before += totals[k]
    if on:
        ids[before + cuda.popc(mask & cuda.lanemask_lt())] = t
    if t == 0:
        whole = int32(0)
        for k in range(cuda.blockDim.x >> 5):
            whole += totals[k]
        count[0] = whole


@sample()
def dynamic_reverse(x: I32, y: I32):
    """Each block reverses its part through dynamic shared memory and a local array."""
    there = cuda.shared.array(0, int32)
    mine = cuda.local.array(2, int32)
    t = cuda.threadIdx.x
    mine[t & 1] = x[cuda.grid(1)]
    there[cuda.blockDim.x - 1 - t] = mine[t & 1]
    cuda.syncthreads()
    y[cuda.grid(1)] = there[t]


# Faulty kernels


@sample()
def late_barrier(x: F32, y: F32):
    """The next round writes before all have read: one barrier is missing."""
    there = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s = float32(0)
    for k in range(2):
        there[t] = x[t + 64 * k]
        cuda.syncthreads()
        s += there[63 - t]
    y[t] = s


@sample()
def missing_barrier(x: F32, y: F32):
    """Neighbours through shared memory, without a barrier."""
    there = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    there[t] = x[t]
    y[t] = there[(t + 32) & 63]


@sample()
def divergent_barrier(x: F32, y: F32):
    t = cuda.threadIdx.x
    if t < 40:
        cuda.syncthreads()
        y[t] = x[t]
    else:
        y[t] = -x[t]
        cuda.syncthreads()


load_too_early = assembly("ld.global.nc.f32 $0, [$1];", types.float32, types.int64)


@python_stand_in(load_too_early)
def _load_too_early(address):
    return np.float32(0)


@sample()
def hoisted_load(x: i64, y: F32, repeats: i32, n: i32):
    """An assembly load that has no declared effects: LLVM moves it before its condition."""
    i = cuda.threadIdx.x
    for k in range(repeats):
        if i < n:
            y[i + 64 * k] = load_too_early(x)
