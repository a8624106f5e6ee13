"""GATED_POOL: a thread has a column of a run, whose softmax stays in registers over all tokens.

Access: adjacent threads, adjacent columns; a token's rows are read once.
"""

import math
from functools import cache

from numba import cuda, float32, int32, int64

from .....rounding import ceil_div
from .....tensor import Tensor
from ...driver import Grid
from ...intrin import divide, load_f32, load_i32, store_f32, store_i32
from ...kernel import F32, U8, GpuKernel, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from .runs import THREADS, ZERO, has_runs, run_of, run_values


@cache
def pool_kernel(halves: int) -> GpuKernel:
    """The kernel for rows of 2 halves (overlap) or of 1.

    A column of a state is maxima, sums and weighted sums of each half; with 2 halves, then those of
    the first half of the group before.
    """
    size, before_at = 3 * halves + 3 * (halves - 1), 6

    @kernel("gated_pool" + "_overlap" * (halves - 1), threads=THREADS)
    def gated_pool(
        x: U8, w: U8, b: U8, pos: U8, states: F32, y: U8, runs: U8, slots: U8, d: i32, ratio: i32,
        n_tokens: i32, n_runs: i32, n_slots: i32, x1: i64, w1: i64, b1: i64, y1: i64, error: U8,
        code: i32,
    ):  # fmt: skip
        c, r = int32(cuda.grid(1)), int32(cuda.blockIdx.y)
        first, n, before = run_of(runs, r, n_runs, n_tokens, n_slots)
        if first < 0:
            if cuda.threadIdx.x == 0:
                store_i32(error, 0, code)
            return
        if c >= d:
            return
        is_padding = r == n_runs
        s = cuda.local.array(size, float32)
        for j in range(size):
            s[j] = states[(int64(before) * size + j) * d + c] if before >= 0 else ZERO
        for k in range(n):
            t, out = int64(first) + k, ZERO
            if not is_padding:
                position = load_i32(pos, 4 * t)
                place = int32(position - divide(position, ratio) * ratio)
                if place == 0:
                    for j in range(3 * (halves - 1)):
                        s[before_at + j] = s[halves * j]
                    for j in range(3 * halves):
                        s[j] = ZERO
                for h in range(halves):
                    column = int64(4) * (int64(h) * d + c)
                    z = load_f32(w, t * w1 + column) + load_f32(b, place * b1 + column)
                    v = load_f32(x, t * x1 + column)
                    old = s[h] if s[halves + h] > ZERO else z
                    top = old if old > z else z
                    f, g = math.exp(old - top), math.exp(z - top)
                    s[h] = top
                    s[halves + h] = s[halves + h] * f + g
                    s[2 * halves + h] = s[2 * halves + h] * f + v * g
                if place == ratio - 1:
                    if halves == 1:
                        out = s[2] / s[1]
                    else:
                        old = s[before_at] if s[before_at + 1] > ZERO else s[1]
                        top = old if old > s[1] else s[1]
                        f, g = math.exp(s[1] - top), math.exp(old - top)
                        out = s[5] * f + s[before_at + 2] * g
                        out /= s[3] * f + s[before_at + 1] * g
                slot = load_i32(slots, 4 * t)
                if slot >= n_slots:
                    store_i32(error, 0, code)
                elif slot >= 0:
                    for j in range(size):
                        states[(int64(slot) * size + j) * d + c] = s[j]
            store_f32(y, t * y1 + int64(4) * c, out)

    return gated_pool


@lowers("GATED_POOL", has_runs)
def _lower_gated_pool(lowering: GpuLowering, node: Tensor) -> None:
    x, score, bias, pos, states = node.src[:5]
    d, n_tokens = node.ne[:2]
    call = pool_kernel(2 if node.op_params["overlap"] else 1)(
        x=x, w=score, b=bias, pos=pos, states=states, y=node, d=d, ratio=bias.ne[1],
        **run_values(lowering, node, n_tokens, states.ne[1]),
    )  # fmt: skip
    lowering.launch(call, Grid(ceil_div(d, THREADS), node.src[-2].ne[1] + 1))
