"""Float32 sums whose order is written here, so that every instruction set has the same bits.

    total_f32(x, n)                                # in jitted code: of n float32 at an address
    squares_f32(x, n)                              # of their squares
    max_f32(x, n)                                  # the largest: LLVM takes one by one, for NaN

LLVM would choose the number of partial sums by the width of the host's vectors. Here they are 32:
column i belongs to sum i % 32, the four vectors of 8 are added in pairs, then halves to halves; the
columns behind the last 32 follow one by one.
Access: front to back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .loop import counted_loop
from .vector import f32, i32, i64, load, splat, vec

Value = Any
Step = Callable[[Value, Value, Value], Value]
_SUMS = 32


def _add(b: Value, total: Value, x: Value) -> Value:
    return b.fadd(total, x)


def _add_square(b: Value, total: Value, x: Value) -> Value:
    return b.fadd(total, b.fmul(x, x, flags=["contract"]), flags=["contract"])


def _max(b: Value, top: Value, x: Value) -> Value:
    return b.select(b.fcmp_ordered(">", x, top), x, top)


def _part(b: Value, x: Value, first: int, n: int) -> Value:
    return b.shuffle_vector(x, x, ir.Constant(vec(i32, n), list(range(first, first + n))))


def _emit(b: Value, x: Value, n: Value, add: Step, join: Step, start: float) -> Value:
    def at(i: Value) -> Value:
        return b.add(x, b.shl(i, ir.Constant(i64, 2)))

    def block(i: Value, carried: list[Value]) -> list[Value]:
        place = at(b.mul(i, ir.Constant(i64, _SUMS)))
        return [add(b, carried[0], load(b, place, vec(f32, _SUMS), 4))]

    blocks = b.lshr(n, ir.Constant(i64, _SUMS.bit_length() - 1))
    (sums,) = counted_loop(b, blocks, [splat(f32, _SUMS, start)], block)
    quarters = [_part(b, sums, first, 8) for first in range(0, _SUMS, 8)]
    total = join(b, join(b, *quarters[:2]), join(b, *quarters[2:]))
    for half in (4, 2, 1):
        total = join(b, _part(b, total, 0, half), _part(b, total, half, half))
    total = b.extract_element(total, ir.Constant(i32, 0))
    done = b.shl(blocks, ir.Constant(i64, _SUMS.bit_length() - 1))

    def column(i: Value, carried: list[Value]) -> list[Value]:
        return [add(b, carried[0], load(b, at(b.add(done, i)), f32))]

    (total,) = counted_loop(b, b.sub(n, done), [total], column)
    return total


def _reducer(add: Step, doc: str, join: Step = _add, start: float = 0.0) -> Any:
    @intrinsic
    def reduce_f32(typingctx: Any, x: Any, n: Any) -> Any:
        def codegen(context: Any, b: Value, sig: Any, args: Any) -> Value:
            return _emit(b, *args, add, join, start)

        return types.float32(types.int64, types.int64), codegen

    reduce_f32.__doc__ = doc
    return reduce_f32


total_f32 = _reducer(_add, "The sum of ``n`` float32 at an address.")
squares_f32 = _reducer(_add_square, "The sum of squares of ``n`` float32 at an address.")
max_f32 = _reducer(_max, "The largest of ``n`` float32 but NaN, or -inf.", _max, -math.inf)
