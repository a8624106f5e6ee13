"""Float32 sums in a fixed order, so that every instruction set has the same bits.

    total_f32(x, n)                                # in jitted code: of n float32 at an address
    squares_f32(x, n)                              # of their squares
    max_f32(x, n)                                  # the largest: LLVM vectorises no maximum
    dot_f32(F16, x, y, n)                          # of n F16 or F32 with n float32
    add_rows(F16, rows, factors, n_rows, x, y, n)  # y = x + sum of factors times rows

LLVM would choose the number of partial sums by the width of the host's vectors. Here they are 32:
column i belongs to sum i % 32; four vectors of 8 are added in pairs, then halves to halves; the
columns after the last 32 are added one by one.
Access: front to back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from ....compiler.jit import intrinsic_from_ir
from .isa import fma, load_floats, widen
from .vector import (
    F32,
    broadcast_f32,
    const,
    counted_loop,
    f32,
    i16,
    i32,
    i64,
    item_at,
    load,
    part_of,
    pieces,
    splat,
    store,
    times,
    vec,
)

Value = Any
Step = Callable[[Value, Value, Value], Value]
_SUMS = 32


def _add(b: Value, total: Value, x: Value) -> Value:
    return b.fadd(total, x)


def _add_square(b: Value, total: Value, x: Value) -> Value:
    return b.fadd(total, b.fmul(x, x, flags=["contract"]), flags=["contract"])


def _max(b: Value, top: Value, x: Value) -> Value:
    return b.select(b.fcmp_ordered(">", x, top), x, top)


def _emit(b: Value, x: Value, n: Value, add: Step, join: Step, start: float) -> Value:
    def many(i: Value, total: Value) -> Value:
        return add(b, total, load(b, item_at(b, x, i, 4), vec(f32, _SUMS), 4))

    def one(i: Value, total: Value) -> Value:
        return add(b, total, load(b, item_at(b, x, i, 4), f32))

    return _reduced(b, n, many, one, join, start)


def _reduced(b: Value, n: Value, many: Any, one: Any, join: Step, start: float) -> Value:
    """The result of ``n`` columns, of which ``many`` adds 32 and ``one`` adds one."""

    def block(i: Value, carried: list[Value]) -> list[Value]:
        return [many(times(b, i, _SUMS), carried[0])]

    blocks = b.lshr(n, const(_SUMS.bit_length() - 1))
    (sums,) = counted_loop(b, blocks, [splat(f32, _SUMS, start)], block)
    quarters = [part_of(b, sums, first, 8) for first in range(0, _SUMS, 8)]
    total = join(b, join(b, *quarters[:2]), join(b, *quarters[2:]))
    for half in (4, 2, 1):
        total = join(b, part_of(b, total, 0, half), part_of(b, total, half, half))
    total = b.extract_element(total, ir.Constant(i32, 0))
    done = b.shl(blocks, const(_SUMS.bit_length() - 1))

    def column(i: Value, carried: list[Value]) -> list[Value]:
        return [one(b.add(done, i), carried[0])]

    (total,) = counted_loop(b, b.sub(n, done), [total], column)
    return total


def _reducer(add: Step, doc: str, join: Step = _add, start: float = 0.0) -> Any:
    def reduce_f32(b: Value, x: Value, n: Value) -> Value:
        return _emit(b, x, n, add, join, start)

    reduce_f32.__doc__ = doc
    return intrinsic_from_ir(reduce_f32, result=types.float32)


total_f32 = _reducer(_add, "The sum of ``n`` float32 at an address.")
squares_f32 = _reducer(_add_square, "The sum of squares of ``n`` float32 at an address.")
max_f32 = _reducer(_max, "The largest of ``n`` float32 but NaN, or -inf.", _max, -math.inf)


@intrinsic_from_ir(literals=1, result=types.float32)
def dot_f32(b: Value, kind: int, x: Value, y: Value, n: Value) -> Value:
    """The sum of products of ``n`` elements of a type, F16 or F32, with ``n`` float32."""
    size, element = (4, f32) if kind == F32 else (2, i16)

    def add(total: Value, x: Value, y: Value) -> Value:
        return b.fadd(total, b.fmul(x, y, flags=["contract"]), flags=["contract"])

    def many(i: Value, total: Value) -> Value:
        floats = load_floats(b, kind, item_at(b, x, i, size), _SUMS)
        return add(total, floats, load(b, item_at(b, y, i, 4), vec(f32, _SUMS), 4))

    def one(i: Value, total: Value) -> Value:
        value = widen(b, kind, load(b, item_at(b, x, i, size), element))
        return add(total, value, load(b, item_at(b, y, i, 4), f32))

    return _reduced(b, n, many, one, _add, 0.0)


@intrinsic_from_ir(literals=1, args=(types.int64,) * 6)
def add_rows(
    b: Value, kind: int, rows: Value, factors: Value, n_rows: Value, x: Value, y: Value, n: Value
) -> None:
    """``y = x + sum of factors[r] * row r`` of ``n`` columns; y may be x.

    Args:
        rows: address of the addresses of rows of a type, F16 or F32.
        factors: address of float32.
    """
    for offset, size in pieces(b, n, (_SUMS, 8, 1)):
        place = offset if kind == F32 else b.lshr(offset, const(1))

        def add(
            r: Value, carried: list[Value], place: Value = place, size: int = size
        ) -> list[Value]:
            row = b.add(load(b, item_at(b, rows, r, 8), i64), place)
            factor = broadcast_f32(b, item_at(b, factors, r, 4), size)
            return [fma(b, load_floats(b, kind, row, size), factor, carried[0])]

        (change,) = counted_loop(b, n_rows, [splat(f32, size, 0.0)], add)
        before = load(b, b.add(x, offset), vec(f32, size))
        store(b, b.fadd(before, change), b.add(y, offset))
