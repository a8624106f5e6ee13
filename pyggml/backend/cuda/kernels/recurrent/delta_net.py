"""GATED_DELTA_NET, row by row of the states.

A row is decayed, multiplied with the key, changed, and multiplied with the query, all in registers.
The inputs of the next token are loaded before a token's sums, so that a prompt does not wait for
them. Access: a state is read and written once a run.
"""

import math
from functools import cache

from numba import cuda, float32, int32, int64

from .....tensor import Tensor
from ...intrin import divide, load_f32, load_i32, store_f32, store_i32
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
def delta_net_kernel(shape: RowShape, gates_keys: bool) -> GpuKernel:
    """The kernel with a gate for each head or, of KDA, for each key."""
    per_lane, held, f = shape.per_lane, shape.held, row_functions(shape)
    place, load_vector, sum_rows, clear = f.place, f.load_vector, f.sum_rows, f.clear
    load_rows, store_rows = f.load_rows, f.store_rows
    K_AT, V_AT, Q_AT = 0, 2 * per_lane, per_lane
    BETA_AT = 2 * per_lane + ROWS
    G_AT = BETA_AT + 1
    size = G_AT + (per_lane if gates_keys else 1)

    name = f"gated_delta_net{'_keys' * gates_keys}{shape.suffix}"

    @kernel(name, threads=THREADS, max_registers=REGISTERS, unroll=True)
    def gated_delta_net(
        q: U8, k: U8, v: U8, g: U8, beta: U8, states: F32, y: U8, runs: U8, slots: U8, n: i32,
        n_head: i32, q_ne1: i32, k_ne1: i32, tiles: i32, n_tokens: i32, n_runs: i32, n_slots: i32,
        q1: i64, q2: i64, k1: i64, k2: i64, v1: i64, v2: i64, g1: i64, g2: i64, beta1: i64,
        beta2: i64, scale: f32, error: U8, code: i32,
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
        decays = cuda.local.array(per_lane, float32)
        matrix, all_heads = int64(n) * n, int64(n) * n * n_head
        at = int64(-1) if before < 0 else before * all_heads + head * matrix
        load_rows(states, at, 1, n, lane, n, row, n, s)
        q0, k0 = int32(head - divide(head, q_ne1) * q_ne1) * q1, int64(0)
        k0 = int32(head - divide(head, k_ne1) * k_ne1) * k1
        for i in range(-1, count):
            for j in range(size):
                now[j] = coming[j]
            t = int64(first) + i
            if i + 1 < count:
                load_vector(q, q0 + (t + 1) * q2, lane, n, coming, Q_AT)
                load_vector(k, k0 + (t + 1) * k2, lane, n, coming, K_AT)
                for r in range(ROWS):
                    mine = int64(row + r if row + r < n else n - 1)
                    coming[V_AT + r] = load_f32(v, head * v1 + (t + 1) * v2 + 4 * mine)
                coming[BETA_AT] = load_f32(beta, head * beta1 + (t + 1) * beta2)
                if gates_keys:
                    load_vector(g, head * g1 + (t + 1) * g2, lane, n, coming, G_AT)
                else:
                    coming[G_AT] = load_f32(g, head * g1 + (t + 1) * g2)
            if i >= 0:
                decay = math.exp(now[G_AT])
                for j in range(per_lane):
                    if gates_keys and j > 0:
                        decay = math.exp(now[G_AT + j])
                    decays[j] = decay
                for r in range(ROWS):
                    dot = ZERO
                    for j in range(per_lane):
                        e = s[r * per_lane + j] * decays[j]
                        s[r * per_lane + j] = e
                        dot += e * now[K_AT + j]
                    sums[r] = dot
                sum_rows(sums)
                for r in range(ROWS):
                    delta, dot = now[BETA_AT] * (now[V_AT + r] - sums[r]), ZERO
                    for j in range(per_lane):
                        e = s[r * per_lane + j] + delta * now[K_AT + j]
                        s[r * per_lane + j] = e
                        dot += e * now[Q_AT + j]
                    sums[r] = dot
                sum_rows(sums)
                for r in range(ROWS):
                    if lane == 0 and row + r < n:
                        store_f32(y, y0 + t * y1 + int64(4) * (row + r), sums[r] * scale)
                slot = load_i32(slots, 4 * t)
                if slot >= n_slots:
                    store_i32(error, 0, code)
                elif slot >= 0:
                    at = slot * all_heads + head * matrix
                    store_rows(states, at, 1, n, lane, n, row, n, s)

    return gated_delta_net


def _supports(node: Tensor) -> bool:
    return has_runs(node) and node.ne[0] <= MAX_ROW


@lowers("GATED_DELTA_NET", _supports)
def _lower_gated_delta_net(lowering: GpuLowering, node: Tensor) -> None:
    q, k, v, g, beta, states = node.src[:6]
    n, n_head, n_tokens = v.ne[:3]
    shape = row_shape(n)
    grid, tiles = row_grid(node, shape, n_head, n)
    call = delta_net_kernel(shape, g.ne[0] != 1)(
        q=q, k=k, v=v, g=g, beta=beta, states=states, y=node, n=n, n_head=n_head, tiles=tiles,
        scale=1 / math.sqrt(n), **run_values(lowering, node, n_tokens, states.ne[3]),
    )  # fmt: skip
    lowering.launch(call, grid)
