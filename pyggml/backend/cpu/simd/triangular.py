"""Forward substitution: X of A X = B for columns of B, A lower triangular.

    solve_columns(a, b, x, n, stride, k)           # k columns; rows of b and x are stride apart

A row of X is ``(B[i] - sum of A[i, t] X[t]) / A[i, i]``, with sums over t in order, so that the
bits are those of any vectors.
Access: the rows of X before are read for each row, from L1; 32 sums stay in registers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ....compiler.jit import intrinsic_from_ir
from .isa import fma
from .vector import (
    broadcast_f32,
    const,
    counted_loop,
    f32,
    for_range,
    item_at,
    load,
    pieces,
    splat,
    store,
    vec,
)

Value = Any
_COLUMNS = 32


@intrinsic_from_ir
def solve_columns(
    b: Value, a: Value, rhs: Value, x: Value, n: Value, stride: Value, k: Value
) -> None:
    """Columns of X; A is n x n without gaps."""

    def add(row: Value, offset: Value, lanes: int, t: Value, carried: list[Value]) -> list[Value]:
        known = load(b, b.add(item_at(b, x, t, stride), offset), vec(f32, lanes), 4)
        return [fma(b, broadcast_f32(b, item_at(b, row, t, 4), lanes), known, carried[0])]

    for offset, lanes in pieces(b, k, (_COLUMNS, 8, 1)):
        with for_range(b, n) as i:
            row = b.add(a, b.mul(i, b.shl(n, const(2))))
            zero = splat(f32, lanes, 0.0)
            (total,) = counted_loop(b, i, [zero], partial(add, row, offset, lanes))
            place = b.add(b.mul(i, stride), offset)
            value = b.fsub(load(b, b.add(rhs, place), vec(f32, lanes), 4), total)
            diagonal = broadcast_f32(b, item_at(b, row, i, 4), lanes)
            store(b, b.fdiv(value, diagonal), b.add(x, place), 4)
