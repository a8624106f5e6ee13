"""GATED_LINEAR_ATTN, by columns of heads: as RWKV_WKV6.

Access: a state is read and written once a run.
"""

from functools import cache

from numba import cuda, float32, int32, int64

from .....tensor import Tensor
from ...intrin import load_f32, load_i32, store_f32, store_i32
from ...kernel import F32, U8, GpuKernel, f32, i32, i64, kernel
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
def linear_attn_kernel(shape: RowShape) -> GpuKernel:
    """The kernel of a shape of columns."""
    per_lane, held, f = shape.per_lane, shape.held, row_functions(shape)
    place, load_vector, sum_rows, clear = f.place, f.load_vector, f.sum_rows, f.clear
    load_rows, store_rows = f.load_rows, f.store_rows
    K_AT, Q_AT, G_AT, V_AT = 0, per_lane, 2 * per_lane, 3 * per_lane
    size = V_AT + ROWS

    @kernel(
        f"gated_linear_attn{shape.suffix}", threads=THREADS, max_registers=REGISTERS, unroll=True
    )
    def gated_linear_attn(
        k: U8, v: U8, q: U8, g: U8, states: F32, y: U8, runs: U8, slots: U8, n: i32, n_head: i32,
        tiles: i32, n_tokens: i32, n_runs: i32, n_slots: i32, k1: i64, k2: i64, v1: i64, v2: i64,
        q1: i64, q2: i64, g1: i64, g2: i64, scale: f32, error: U8, code: i32,
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
        load_rows(states, at, n, 1, lane, n, row, n, s)
        for i in range(-1, count):
            for j in range(size):
                now[j] = coming[j]
            t = int64(first) + i
            if i + 1 < count:
                load_vector(k, head * k1 + (t + 1) * k2, lane, n, coming, K_AT)
                load_vector(q, head * q1 + (t + 1) * q2, lane, n, coming, Q_AT)
                load_vector(g, head * g1 + (t + 1) * g2, lane, n, coming, G_AT)
                for c in range(ROWS):
                    mine = int64(row + c if row + c < n else n - 1)
                    coming[V_AT + c] = load_f32(v, head * v1 + (t + 1) * v2 + 4 * mine)
            if i >= 0:
                for c in range(ROWS):
                    dot = ZERO
                    for j in range(per_lane):
                        e = s[c * per_lane + j] * now[G_AT + j] + now[K_AT + j] * now[V_AT + c]
                        s[c * per_lane + j] = e
                        dot += e * now[Q_AT + j]
                    sums[c] = dot
                sum_rows(sums)
                for c in range(ROWS):
                    if lane == 0 and row + c < n:
                        store_f32(y, y0 + t * y1 + int64(4) * (row + c), sums[c] * scale)
                slot = load_i32(slots, 4 * t)
                if slot >= n_slots:
                    store_i32(error, 0, code)
                elif slot >= 0:
                    at = slot * all_heads + head * matrix
                    store_rows(states, at, n, 1, lane, n, row, n, s)

    return gated_linear_attn


def _supports(node: Tensor) -> bool:
    return has_runs(node) and node.ne[0] <= MAX_ROW


@lowers("GATED_LINEAR_ATTN", _supports)
def _lower_gated_linear_attn(lowering: GpuLowering, node: Tensor) -> None:
    k, v, q, g, states = node.src[:5]
    n, n_head, n_tokens = k.ne[:3]
    shape = row_shape(n)
    grid, tiles = row_grid(node, shape, n_head, n)
    call = linear_attn_kernel(shape)(
        k=k, v=v, q=q, g=g, states=states, y=node, n=n, n_head=n_head, tiles=tiles,
        scale=node.op_params["scale"], **run_values(lowering, node, n_tokens, states.ne[1]),
    )  # fmt: skip
    lowering.launch(call, grid)
