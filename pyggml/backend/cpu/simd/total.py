"""Float32 sums in a fixed order, so that every instruction set has the same bits.

    total_f32(x, n)                                # in jitted code: of n float32 at an address
    squares_f32(x, n)                              # of their squares
    max_f32(x, n)                                  # the largest: LLVM vectorises no maximum
    dot_f32(F16, x, y, n)                          # of n F16 or F32 with n float32
    add_columns(F16, columns, factors, n, y, ahead)    # y += sum of factors times columns

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
    LINE,
    broadcast_f32,
    const,
    counted_loop,
    f32,
    i16,
    i32,
    item_at,
    load,
    part_of,
    prefetch_lines,
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


@intrinsic_from_ir(literals=1)
def add_columns(
    b: Value, kind: int, columns: Value, factors: Value, n: Value, y: Value, ahead: Value
) -> None:
    """``y += sum of factors[i] * column i``, of ``n`` columns of 16 values: F32 or F16.

    Column i belongs to sum i % 4; the last n % 4 are added to their total.

    Args:
        factors, y: addresses of float32.
        ahead: bytes from a column to the line that is prefetched with it.
    """
    size = 16 * (4 if kind == F32 else 2)  # bytes of a column

    def column(i: Value, total: Value) -> Value:
        values = load_floats(b, kind, item_at(b, columns, i, size), 16)
        return fma(b, values, broadcast_f32(b, item_at(b, factors, i, 4), 16), total)

    def four(i: Value, sums: list[Value]) -> list[Value]:
        first = times(b, i, 4)
        start = b.add(item_at(b, columns, first, size), ahead)
        prefetch_lines(b, start, 4 * size // LINE, 3)
        return [column(b.add(first, const(k)), x) for k, x in enumerate(sums)]

    fours = b.lshr(n, const(2))
    sums = counted_loop(b, fours, [splat(f32, 16, 0.0)] * 4, four)
    total = b.fadd(b.fadd(sums[0], sums[1]), b.fadd(sums[2], sums[3]))
    done = b.shl(fours, const(2))

    def one(i: Value, carried: list[Value]) -> list[Value]:
        return [column(b.add(done, i), carried[0])]

    (total,) = counted_loop(b, b.and_(n, const(3)), [total], one)
    store(b, b.fadd(load(b, y, vec(f32, 16)), total), y)
