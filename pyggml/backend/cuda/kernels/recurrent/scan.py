"""SSM_SCAN: the states of Mamba 1 and 2, row by row.

Groups of rows are those of the heads with common B and C. The inputs of the next token are loaded
before a token's sums, so that a prompt does not wait for them.
Access: a state is read and written once a run.
"""

import math
from functools import cache

from numba import cuda, float32, int32, int64

from .....tensor import Tensor
from ...intrin import divide, load_f32, load_i32, store_f32, store_i32
from ...kernel import F32, U8, GpuKernel, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from ..elementwise.elementwise import FUNCTIONS
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
def scan_kernel(shape: RowShape, decays_rows: bool) -> GpuKernel:
    """The kernel of Mamba 2 or, with a decay for each element of a row, of Mamba 1."""
    per_lane, held, f = shape.per_lane, shape.held, row_functions(shape)
    softplus = FUNCTIONS["softplus"]
    place, load_vector, sum_rows, clear = f.place, f.load_vector, f.sum_rows, f.clear
    load_rows, store_rows = f.load_rows, f.store_rows
    B_AT, C_AT, X_AT, DT_AT = 0, per_lane, 2 * per_lane, 2 * per_lane + ROWS
    size = 2 * per_lane + 2 * ROWS
    n_rates = held if decays_rows else ROWS

    @kernel(
        f"ssm_scan{'_rows' * decays_rows}{shape.suffix}",
        threads=THREADS,
        max_registers=REGISTERS,
        unroll=True,
    )
    def ssm_scan(
        states: F32, x: U8, dt: U8, a: U8, b: U8, c: U8, y: U8, runs: U8, slots: U8, n: i32,
        dim: i32, n_rows: i32, total: i32, tiles: i32, n_tokens: i32, n_runs: i32, n_slots: i32,
        x2: i64, dt1: i64, b1: i64, b2: i64, c1: i64, c2: i64, error: U8, code: i32,
    ):  # fmt: skip
        """``n_rows``: of a group; ``total``: of all."""
        group, row, lane = place(tiles)
        first, count, before = run_of(runs, int32(cuda.blockIdx.y), n_runs, n_tokens, n_slots)
        if first < 0:
            if cuda.threadIdx.x == 0:
                store_i32(error, 0, code)
            return
        top, y1 = group * int64(n_rows), int64(4) * total
        if cuda.blockIdx.y == n_runs:
            clear(y, first * y1 + 4 * top, y1, count, lane, row, n_rows)
            return
        s, sums = cuda.local.array(held, float32), cuda.local.array(ROWS, float32)
        now, coming = cuda.local.array(size, float32), cuda.local.array(size, float32)
        heads = cuda.local.array(ROWS, int64)
        rates = cuda.local.array(n_rates, float32)
        for r in range(ROWS):
            mine = int32(row + r if row + r < n_rows else n_rows - 1)
            heads[r] = int64(divide(int32(top + mine), dim))
            if decays_rows:
                load_vector(a, 4 * heads[r] * n, lane, n, rates, r * per_lane)
            else:
                rates[r] = load_f32(a, 4 * heads[r])
        at = int64(-1) if before < 0 else (int64(before) * total + top) * n
        load_rows(states, at, 1, n, lane, n, row, n_rows, s)
        for k in range(-1, count):
            for i in range(size):
                now[i] = coming[i]
            t = int64(first) + k
            if k + 1 < count:
                load_vector(b, group * b1 + (t + 1) * b2, lane, n, coming, B_AT)
                load_vector(c, group * c1 + (t + 1) * c2, lane, n, coming, C_AT)
                for r in range(ROWS):
                    mine = int32(row + r if row + r < n_rows else n_rows - 1)
                    coming[X_AT + r] = load_f32(x, (t + 1) * x2 + 4 * (top + mine))
                    coming[DT_AT + r] = load_f32(dt, (t + 1) * dt1 + 4 * heads[r])
            if k >= 0:
                for r in range(ROWS):
                    step = softplus(now[DT_AT + r], ZERO, ZERO, ZERO, ZERO)
                    factor, decay, dot = step * now[X_AT + r], ZERO, ZERO
                    if not decays_rows:
                        decay = math.exp(step * rates[r])
                    for j in range(per_lane):
                        if decays_rows:
                            decay = math.exp(step * rates[r * per_lane + j])
                        e = s[r * per_lane + j] * decay + factor * now[B_AT + j]
                        s[r * per_lane + j] = e
                        dot += e * now[C_AT + j]
                    sums[r] = dot
                sum_rows(sums)
                for r in range(ROWS):
                    if lane == 0 and row + r < n_rows:
                        store_f32(y, t * y1 + 4 * (top + row + r), sums[r])
                slot = load_i32(slots, 4 * t)
                if slot >= n_slots:
                    store_i32(error, 0, code)
                elif slot >= 0:
                    at = (int64(slot) * total + top) * n
                    store_rows(states, at, 1, n, lane, n, row, n_rows, s)

    return ssm_scan


def _supports(node: Tensor) -> bool:
    """All but decays of rows (Mamba 1) in heads of several rows, which no model has."""
    s, A = node.src[0], node.src[3]
    return has_runs(node) and s.ne[0] <= MAX_ROW and (A.ne[0] == 1 or s.ne[1] == 1)


@lowers("SSM_SCAN", _supports)
def _lower_scan(lowering: GpuLowering, node: Tensor) -> None:
    states, x, dt, a, b, c = node.src[:6]
    n, dim, n_head, n_slots = states.ne
    n_group, total, shape = b.ne[1], dim * n_head, row_shape(n)
    grid, tiles = row_grid(node, shape, n_group, total // n_group)
    call = scan_kernel(shape, a.ne[0] != 1)(
        states=states, x=x, dt=dt, a=a, b=b, c=c, y=node, n=n, dim=dim, n_rows=total // n_group,
        total=total, tiles=tiles, **run_values(lowering, node, x.ne[2], n_slots),
    )  # fmt: skip
    lowering.launch(call, grid)
