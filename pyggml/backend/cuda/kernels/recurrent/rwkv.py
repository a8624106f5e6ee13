"""RWKV_WKV6, by columns of heads, and RWKV_WKV7, by rows.

Access: a state is read and written once a run.
"""

from functools import cache

from numba import cuda, float32, int64

from .....tensor import Tensor
from ...intrin import device
from ...kernel import F32, U8, GpuKernel, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from .runs import (
    REGISTERS,
    ROWS,
    THREADS,
    ZERO,
    RowShape,
    carrier,
    launch_heads,
    row_functions,
    supports_heads,
)


@cache
def wkv6_kernel(shape: RowShape) -> GpuKernel:
    """The kernel of version 6."""
    per_lane, f = shape.per_lane, row_functions(shape)
    place, load_vector, load_rows, sum_rows = f.place, f.load_vector, f.load_rows, f.sum_rows
    K_AT, R_AT, DECAY_AT, V_AT = 0, per_lane, 2 * per_lane, 3 * per_lane

    @device
    def fetch(inputs, rows, t, x):
        k, k0, k2, v, v0, v2, r, r0, r2, td, td0, td2, _ = inputs
        n, _, row, lane = rows
        load_vector(k, k0 + t * k2, lane, n, x, K_AT)
        load_vector(r, r0 + t * r2, lane, n, x, R_AT)
        load_vector(td, td0 + t * td2, lane, n, x, DECAY_AT)
        load_rows(v, v0 + t * v2, row, n, x, V_AT)

    @device
    def step(inputs, x, s, y):
        own = inputs[12]
        for c in range(ROWS):
            dot = ZERO
            for j in range(per_lane):
                e, added = s[c * per_lane + j], x[K_AT + j] * x[V_AT + c]
                dot += (e + own[j] * added) * x[R_AT + j]
                s[c * per_lane + j] = e * x[DECAY_AT + j] + added
            y[c] = dot
        sum_rows(y)

    carry = carrier(shape, V_AT + ROWS, fetch, step, by_columns=True)

    @kernel(f"rwkv_wkv6{shape.suffix}", threads=THREADS, max_registers=REGISTERS, unroll=True)
    def rwkv_wkv6(
        k: U8, v: U8, r: U8, tf: U8, td: U8, states: F32, y: U8, runs: U8, slots: U8, n: i32,
        n_head: i32, tiles: i32, n_tokens: i32, n_runs: i32, n_slots: i32, k1: i64, k2: i64,
        v1: i64, v2: i64, r1: i64, r2: i64, td1: i64, td2: i64, error: U8, code: i32,
    ):  # fmt: skip
        head, row, lane = place(tiles)
        y0, y1 = int64(4) * n * head, int64(4) * n * n_head
        own = cuda.local.array(per_lane, float32)
        load_vector(tf, y0, lane, n, own, 0)
        carry(
            (runs, slots, n_runs, n_tokens, n_slots, error, code),
            (states, int64(n) * n * head, int64(n) * n * n_head), (y, y0, y1), (n, n, row, lane),
            (k, head * k1, k2, v, head * v1, v2, r, head * r1, r2, td, head * td1, td2, own),
        )  # fmt: skip

    return rwkv_wkv6


@cache
def wkv7_kernel(shape: RowShape) -> GpuKernel:
    """The kernel of version 7."""
    per_lane, f = shape.per_lane, row_functions(shape)
    place, load_vector, load_rows, sum_rows = f.place, f.load_vector, f.load_rows, f.sum_rows
    R_AT, W_AT, K_AT, A_AT, B_AT, V_AT = (i * per_lane for i in range(6))

    @device
    def fetch(inputs, rows, t, x):
        r, r0, r2, w, w0, w2, k, k0, k2, v, v0, v2, a, a0, a2, b, b0, b2 = inputs
        n, _, row, lane = rows
        load_vector(r, r0 + t * r2, lane, n, x, R_AT)
        load_vector(w, w0 + t * w2, lane, n, x, W_AT)
        load_vector(k, k0 + t * k2, lane, n, x, K_AT)
        load_vector(a, a0 + t * a2, lane, n, x, A_AT)
        load_vector(b, b0 + t * b2, lane, n, x, B_AT)
        load_rows(v, v0 + t * v2, row, n, x, V_AT)

    @device
    def step(inputs, x, s, y):
        for c in range(ROWS):
            dot = ZERO
            for j in range(per_lane):
                dot += s[c * per_lane + j] * x[A_AT + j]
            y[c] = dot
        sum_rows(y)
        for c in range(ROWS):
            dot = ZERO
            for j in range(per_lane):
                e = s[c * per_lane + j] * x[W_AT + j] + x[V_AT + c] * x[K_AT + j]
                e += y[c] * x[B_AT + j]
                s[c * per_lane + j] = e
                dot += e * x[R_AT + j]
            y[c] = dot
        sum_rows(y)

    carry = carrier(shape, V_AT + ROWS, fetch, step)

    @kernel(f"rwkv_wkv7{shape.suffix}", threads=THREADS, max_registers=REGISTERS, unroll=True)
    def rwkv_wkv7(
        r: U8, w: U8, k: U8, v: U8, a: U8, b: U8, states: F32, y: U8, runs: U8, slots: U8, n: i32,
        n_head: i32, tiles: i32, n_tokens: i32, n_runs: i32, n_slots: i32, r1: i64, r2: i64,
        w1: i64, w2: i64, k1: i64, k2: i64, v1: i64, v2: i64, a1: i64, a2: i64, b1: i64, b2: i64,
        error: U8, code: i32,
    ):  # fmt: skip
        head, row, lane = place(tiles)
        y0, y1 = int64(4) * n * head, int64(4) * n * n_head
        carry(
            (runs, slots, n_runs, n_tokens, n_slots, error, code),
            (states, int64(n) * n * head, int64(n) * n * n_head), (y, y0, y1), (n, n, row, lane),
            (r, head * r1, r2, w, head * w1, w2, k, head * k1, k2, v, head * v1, v2,
             a, head * a1, a2, b, head * b1, b2),
        )  # fmt: skip

    return rwkv_wkv7


@lowers("RWKV_WKV6", supports_heads)
def _lower_wkv6(lowering: GpuLowering, node: Tensor) -> None:
    k, v, r, tf, td, states = node.src[:6]
    launch_heads(lowering, node, wkv6_kernel, k=k, v=v, r=r, tf=tf, td=td, states=states)


@lowers("RWKV_WKV7", supports_heads)
def _lower_wkv7(lowering: GpuLowering, node: Tensor) -> None:
    r, w, k, v, a, b, states = node.src[:7]
    launch_heads(lowering, node, wkv7_kernel, r=r, w=w, k=k, v=v, a=a, b=b, states=states)
