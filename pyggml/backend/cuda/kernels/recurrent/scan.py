"""SSM_SCAN: the states of Mamba 1 and 2, row by row, with the product with D and the gate after it.

Groups of rows are those of the heads with common B and C.
Access: a state is read and written once a run.
"""

import math
from functools import cache

from numba import cuda, float32, int32, int64

from .....tensor import Tensor
from ....common.lowering import all_f32
from ....common.memory import overlap
from ...intrin import device, divide, load_f32
from ...kernel import F32, U8, GpuKernel, i32, i64, kernel
from ...lowering import GpuLowering, fuses, lowers
from ..elementwise.elementwise import FUNCTIONS
from .runs import (
    MAX_ROW,
    REGISTERS,
    ROWS,
    THREADS,
    ZERO,
    RowShape,
    carrier,
    has_runs,
    row_functions,
    row_grid,
    row_shape,
    run_values,
)


@cache
def scan_kernel(shape: RowShape, decays_rows: bool, gated: bool = False) -> GpuKernel:
    """The kernel of Mamba 2 or, with a decay for each element of a row, of Mamba 1.

    Args:
        gated: the result is ``silu(z) (y + D x)``.
    """
    per_lane, f = shape.per_lane, row_functions(shape)
    place, load_vector, load_rows, sum_rows = f.place, f.load_vector, f.load_rows, f.sum_rows
    row_of, softplus = f.row_of, FUNCTIONS["softplus"]
    B_AT, C_AT, X_AT, DT_AT = 0, per_lane, 2 * per_lane, 2 * per_lane + ROWS
    Z_AT = DT_AT + ROWS
    silu, size = FUNCTIONS["silu"], Z_AT + ROWS * gated
    n_rates = ROWS * per_lane if decays_rows else ROWS

    @device
    def fetch(inputs, rows, t, v):
        x, x0, x2, dt, dt1, b, b0, b2, c, c0, c2, z, z2, heads, _, _ = inputs
        n, n_rows, row, lane = rows
        load_vector(b, b0 + t * b2, lane, n, v, B_AT)
        load_vector(c, c0 + t * c2, lane, n, v, C_AT)
        load_rows(x, x0 + t * x2, row, n_rows, v, X_AT)
        for r in range(ROWS):
            v[DT_AT + r] = load_f32(dt, t * dt1 + 4 * heads[r])
        if gated:
            load_rows(z, x0 + t * z2, row, n_rows, v, Z_AT)

    @device
    def step(inputs, v, s, y):
        rates, skips = inputs[14], inputs[15]
        for r in range(ROWS):
            dt = softplus(v[DT_AT + r], ZERO, ZERO, ZERO, ZERO)
            factor, decay, dot = dt * v[X_AT + r], ZERO, ZERO
            if not decays_rows:
                decay = math.exp(dt * rates[r])
            for j in range(per_lane):
                if decays_rows:
                    decay = math.exp(dt * rates[r * per_lane + j])
                e = s[r * per_lane + j] * decay + factor * v[B_AT + j]
                s[r * per_lane + j] = e
                dot += e * v[C_AT + j]
            y[r] = dot
        sum_rows(y)
        if gated:
            for r in range(ROWS):
                total = y[r] + v[X_AT + r] * skips[r]
                y[r] = silu(v[Z_AT + r], ZERO, ZERO, ZERO, ZERO) * total

    carry = carrier(shape, size, fetch, step)
    name = f"ssm_scan{'_rows' * decays_rows}{'_gated' * gated}{shape.suffix}"

    @kernel(name, threads=THREADS, max_registers=REGISTERS, unroll=True)
    def ssm_scan(
        states: F32, x: U8, dt: U8, a: U8, b: U8, c: U8, d: U8, z: U8, y: U8, runs: U8, slots: U8,
        n: i32, dim: i32, n_rows: i32, total: i32, tiles: i32, n_tokens: i32, n_runs: i32,
        n_slots: i32, x2: i64, dt1: i64, b1: i64, b2: i64, c1: i64, c2: i64, z2: i64, error: U8,
        code: i32,
    ):  # fmt: skip
        """``n_rows``: of a group; ``total``: of all."""
        group, row, lane = place(tiles)
        top = group * int64(n_rows)
        heads = cuda.local.array(ROWS, int64)
        rates, skips = cuda.local.array(n_rates, float32), cuda.local.array(ROWS, float32)
        for r in range(ROWS):
            heads[r] = int64(divide(int32(top + row_of(row, r, n_rows)), dim))
            if decays_rows:
                load_vector(a, 4 * heads[r] * n, lane, n, rates, r * per_lane)
            else:
                rates[r] = load_f32(a, 4 * heads[r])
            skips[r] = load_f32(d, 4 * heads[r]) if gated else ZERO
        carry(
            (runs, slots, n_runs, n_tokens, n_slots, error, code),
            (states, top * n, int64(total) * n), (y, 4 * top, int64(4) * total),
            (n, n_rows, row, lane),
            (x, 4 * top, x2, dt, dt1, b, group * b1, b2, c, group * c1, c2, z, z2, heads, rates,
             skips),
        )  # fmt: skip

    return ssm_scan


def _supports(node: Tensor) -> bool:
    """All but decays of rows (Mamba 1) in heads of several rows, which no model has."""
    s, A = node.src[0], node.src[3]
    return has_runs(node) and s.ne[0] <= MAX_ROW and (A.ne[0] == 1 or s.ne[1] == 1)


@lowers("SSM_SCAN", _supports)
def _lower_scan(lowering: GpuLowering, node: Tensor) -> None:
    _launch(lowering, node, node, None, None)


@fuses("SSM_SCAN", "MUL", "ADD", "UNARY", "MUL")
def _lower_gated_scan(
    lowering: GpuLowering, scan: Tensor, skip: Tensor, total: Tensor, gate: Tensor, gated: Tensor
) -> bool:
    """``silu(z) (y + D x)`` in the launch of the scan."""
    heads, (x, d), z = scan.src[1], skip.src[:2], gate.src[0]
    if not _supports(scan) or not all(map(all_f32, (skip, total, gate, gated))):
        return False
    if total.src[:2] != (scan, skip) or gated.src[:2] != (total, gate):
        return False
    is_same = (x.data, x.ne, x.nb) == (heads.data, heads.ne, heads.nb)
    if gate.op_params["kind"] != "silu" or not is_same:
        return False
    if d.ne != (1, heads.ne[1], 1, 1) or not d.is_contiguous():
        return False
    if z.ne != scan.ne or z.nb[1] != 4 * z.ne[0]:
        return False
    if any(s is not None and overlap(gated, s) for s in (*scan.src, d, z)):
        return False
    _launch(lowering, scan, gated, d, z)
    return True


def _launch(
    lowering: GpuLowering, node: Tensor, dst: Tensor, d: Tensor | None, z: Tensor | None
) -> None:
    states, x, dt, a, b, c = node.src[:6]
    n, dim, n_head, n_slots = states.ne
    total = dim * n_head
    n_rows = total // b.ne[1]
    shape = row_shape(n, n_rows)
    grid, tiles = row_grid(node, shape, b.ne[1], n_rows)
    call = scan_kernel(shape, a.ne[0] != 1, z is not None)(
        states=states, x=x, dt=dt, a=a, b=b, c=c, d=d, z=z, y=dst, n=n, dim=dim, n_rows=n_rows,
        total=total, tiles=tiles, **run_values(lowering, node, x.ne[2], n_slots),
    )  # fmt: skip
    lowering.launch(call, grid)
