"""RWKV_WKV6 and RWKV_WKV7, by columns of heads and by rows.

In version 6 a lane's elements are those of some keys, in the columns of ``ROWS`` values. The inputs
of the next token are loaded before a token's sums, so that a prompt does not wait for them.
Access: a state is read and written once a run.
"""

from functools import cache

from numba import cuda, float32, int32, int64

from .....tensor import Tensor
from ...intrin import load_f32, load_i32, store_f32, store_i32
from ...kernel import F32, U8, GpuKernel, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from .runs import (
    MAX_ROW,
    REGISTERS,
    ROWS,
    THREADS,
    ZERO,
    RowShape,
    has_runs,
    row_functions,
    row_grid,
    row_shape,
    run_of,
    run_values,
)


@cache
def wkv6_kernel(shape: RowShape) -> GpuKernel:
    """The kernel of version 6."""
    per_lane, held, f = shape.per_lane, shape.held, row_functions(shape)
    place, load_vector, sum_rows, clear = f.place, f.load_vector, f.sum_rows, f.clear
    load_rows, store_rows = f.load_rows, f.store_rows
    K_AT, R_AT, DECAY_AT, V_AT = 0, per_lane, 2 * per_lane, 3 * per_lane
    size = 3 * per_lane + ROWS

    @kernel(f"rwkv_wkv6{shape.suffix}", threads=THREADS, max_registers=REGISTERS, unroll=True)
    def rwkv_wkv6(
        k: U8, v: U8, r: U8, tf: U8, td: U8, states: F32, y: U8, runs: U8, slots: U8, n: i32,
        n_head: i32, tiles: i32, n_tokens: i32, n_runs: i32, n_slots: i32, k1: i64, k2: i64,
        v1: i64, v2: i64, r1: i64, r2: i64, td1: i64, td2: i64, error: U8, code: i32,
    ):  # fmt: skip
        head, row, lane = place(tiles)
        first, count, before = run_of(runs, int32(cuda.blockIdx.y), n_runs, n_tokens, n_slots)
        if first < 0:
            if cuda.threadIdx.x == 0:
                store_i32(error, 0, code)
            return
        y0, y1 = int64(4) * n * head, int64(4) * n * n_head
        if cuda.blockIdx.y == n_runs:
            clear(y, first * y1 + y0, y1, count, lane, row, n)
            return
        s, sums = cuda.local.array(held, float32), cuda.local.array(ROWS, float32)
        now, coming = cuda.local.array(size, float32), cuda.local.array(size, float32)
        own = cuda.local.array(per_lane, float32)
        matrix, all_heads = int64(n) * n, int64(n) * n * n_head
        at = int64(-1) if before < 0 else before * all_heads + head * matrix
        load_rows(states, at, n, 1, lane, n, row, n, s)
        load_vector(tf, y0, lane, n, own, 0)
        for i in range(-1, count):
            for j in range(size):
                now[j] = coming[j]
            t = int64(first) + i
            if i + 1 < count:
                load_vector(k, head * k1 + (t + 1) * k2, lane, n, coming, K_AT)
                load_vector(r, head * r1 + (t + 1) * r2, lane, n, coming, R_AT)
                load_vector(td, head * td1 + (t + 1) * td2, lane, n, coming, DECAY_AT)
                for c in range(ROWS):
                    mine = int64(row + c if row + c < n else n - 1)
                    coming[V_AT + c] = load_f32(v, head * v1 + (t + 1) * v2 + 4 * mine)
            if i >= 0:
                for c in range(ROWS):
                    dot = ZERO
                    for j in range(per_lane):
                        e, added = s[c * per_lane + j], now[K_AT + j] * now[V_AT + c]
                        dot += (e + own[j] * added) * now[R_AT + j]
                        s[c * per_lane + j] = e * now[DECAY_AT + j] + added
                    sums[c] = dot
                sum_rows(sums)
                for c in range(ROWS):
                    if lane == 0 and row + c < n:
                        store_f32(y, y0 + t * y1 + int64(4) * (row + c), sums[c])
                slot = load_i32(slots, 4 * t)
                if slot >= n_slots:
                    store_i32(error, 0, code)
                elif slot >= 0:
                    at = slot * all_heads + head * matrix
                    store_rows(states, at, n, 1, lane, n, row, n, s)

    return rwkv_wkv6


@cache
def wkv7_kernel(shape: RowShape) -> GpuKernel:
    """The kernel of version 7."""
    per_lane, held, f = shape.per_lane, shape.held, row_functions(shape)
    place, load_vector, sum_rows, clear = f.place, f.load_vector, f.sum_rows, f.clear
    load_rows, store_rows = f.load_rows, f.store_rows
    R_AT, W_AT, K_AT, A_AT, B_AT = (i * per_lane for i in range(5))
    V_AT = 5 * per_lane
    size = V_AT + ROWS

    @kernel(f"rwkv_wkv7{shape.suffix}", threads=THREADS, max_registers=REGISTERS, unroll=True)
    def rwkv_wkv7(
        r: U8, w: U8, k: U8, v: U8, a: U8, b: U8, states: F32, y: U8, runs: U8, slots: U8, n: i32,
        n_head: i32, tiles: i32, n_tokens: i32, n_runs: i32, n_slots: i32, r1: i64, r2: i64,
        w1: i64, w2: i64, k1: i64, k2: i64, v1: i64, v2: i64, a1: i64, a2: i64, b1: i64, b2: i64,
        error: U8, code: i32,
    ):  # fmt: skip
        head, row, lane = place(tiles)
        first, count, before = run_of(runs, int32(cuda.blockIdx.y), n_runs, n_tokens, n_slots)
        if first < 0:
            if cuda.threadIdx.x == 0:
                store_i32(error, 0, code)
            return
        y0, y1 = int64(4) * n * head, int64(4) * n * n_head
        if cuda.blockIdx.y == n_runs:
            clear(y, first * y1 + y0, y1, count, lane, row, n)
            return
        s, sums = cuda.local.array(held, float32), cuda.local.array(ROWS, float32)
        now, coming = cuda.local.array(size, float32), cuda.local.array(size, float32)
        matrix, all_heads = int64(n) * n, int64(n) * n * n_head
        at = int64(-1) if before < 0 else before * all_heads + head * matrix
        load_rows(states, at, 1, n, lane, n, row, n, s)
        for i in range(-1, count):
            for j in range(size):
                now[j] = coming[j]
            t = int64(first) + i
            if i + 1 < count:
                load_vector(r, head * r1 + (t + 1) * r2, lane, n, coming, R_AT)
                load_vector(w, head * w1 + (t + 1) * w2, lane, n, coming, W_AT)
                load_vector(k, head * k1 + (t + 1) * k2, lane, n, coming, K_AT)
                load_vector(a, head * a1 + (t + 1) * a2, lane, n, coming, A_AT)
                load_vector(b, head * b1 + (t + 1) * b2, lane, n, coming, B_AT)
                for c in range(ROWS):
                    mine = int64(row + c if row + c < n else n - 1)
                    coming[V_AT + c] = load_f32(v, head * v1 + (t + 1) * v2 + 4 * mine)
            if i >= 0:
                for c in range(ROWS):
                    dot = ZERO
                    for j in range(per_lane):
                        dot += s[c * per_lane + j] * now[A_AT + j]
                    sums[c] = dot
                sum_rows(sums)
                for c in range(ROWS):
                    dot = ZERO
                    for j in range(per_lane):
                        e = s[c * per_lane + j] * now[W_AT + j] + now[V_AT + c] * now[K_AT + j]
                        e += sums[c] * now[B_AT + j]
                        s[c * per_lane + j] = e
                        dot += e * now[R_AT + j]
                    sums[c] = dot
                sum_rows(sums)
                for c in range(ROWS):
                    if lane == 0 and row + c < n:
                        store_f32(y, y0 + t * y1 + int64(4) * (row + c), sums[c])
                slot = load_i32(slots, 4 * t)
                if slot >= n_slots:
                    store_i32(error, 0, code)
                elif slot >= 0:
                    at = slot * all_heads + head * matrix
                    store_rows(states, at, 1, n, lane, n, row, n, s)

    return rwkv_wkv7


def _supports(node: Tensor) -> bool:
    return has_runs(node) and node.ne[0] <= MAX_ROW


@lowers("RWKV_WKV6", _supports)
def _lower_wkv6(lowering: GpuLowering, node: Tensor) -> None:
    k, v, r, tf, td, states = node.src[:6]
    n, n_head, n_tokens = k.ne[:3]
    shape = row_shape(n)
    grid, tiles = row_grid(node, shape, n_head, n)
    call = wkv6_kernel(shape)(
        k=k, v=v, r=r, tf=tf, td=td, states=states, y=node, n=n, n_head=n_head, tiles=tiles,
        **run_values(lowering, node, n_tokens, states.ne[1]),
    )  # fmt: skip
    lowering.launch(call, grid)


@lowers("RWKV_WKV7", _supports)
def _lower_wkv7(lowering: GpuLowering, node: Tensor) -> None:
    r, w, k, v, a, b, states = node.src[:7]
    n, n_head, n_tokens = r.ne[:3]
    shape = row_shape(n)
    grid, tiles = row_grid(node, shape, n_head, n)
    call = wkv7_kernel(shape)(
        r=r, w=w, k=k, v=v, a=a, b=b, states=states, y=node, n=n, n_head=n_head, tiles=tiles,
        **run_values(lowering, node, n_tokens, states.ne[1]),
    )  # fmt: skip
    lowering.launch(call, grid)
