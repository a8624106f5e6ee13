"""Float32 sums whose order is written here, so that every instruction set has the same bits.

    total_f32(x, n)                                # in jitted code: of n float32 at an address
    squares_f32(x, n)                              # of their squares

LLVM would choose the number of partial sums by the width of the host's vectors. Here they are 32:
column i belongs to sum i % 32, the four vectors of 8 are added in pairs, then halves to halves; the
columns behind the last 32 follow one by one.
Access: front to back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .loop import counted_loop
from .vector import f32, i32, i64, load, splat, vec

Value = Any
_SUMS = 32


def _add(b: Value, total: Value, x: Value) -> Value:
    return b.fadd(total, x)


def _add_square(b: Value, total: Value, x: Value) -> Value:
    return b.fadd(total, b.fmul(x, x, flags=["contract"]), flags=["contract"])


def _part(b: Value, x: Value, first: int, n: int) -> Value:
    return b.shuffle_vector(x, x, ir.Constant(vec(i32, n), list(range(first, first + n))))


def _emit(b: Value, x: Value, n: Value, add: Callable[[Value, Value, Value], Value]) -> Value:
    def at(i: Value) -> Value:
        return b.add(x, b.shl(i, ir.Constant(i64, 2)))

    def block(i: Value, carried: list[Value]) -> list[Value]:
        place = at(b.mul(i, ir.Constant(i64, _SUMS)))
        return [add(b, carried[0], load(b, place, vec(f32, _SUMS), 4))]

    blocks = b.lshr(n, ir.Constant(i64, _SUMS.bit_length() - 1))
    (sums,) = counted_loop(b, blocks, [splat(f32, _SUMS, 0.0)], block)
    quarters = [_part(b, sums, first, 8) for first in range(0, _SUMS, 8)]
    total = b.fadd(b.fadd(*quarters[:2]), b.fadd(*quarters[2:]))
    for half in (4, 2, 1):
        total = b.fadd(_part(b, total, 0, half), _part(b, total, half, half))
    total = b.extract_element(total, ir.Constant(i32, 0))
    done = b.shl(blocks, ir.Constant(i64, _SUMS.bit_length() - 1))

    def column(i: Value, carried: list[Value]) -> list[Value]:
        return [add(b, carried[0], load(b, at(b.add(done, i)), f32))]

    (total,) = counted_loop(b, b.sub(n, done), [total], column)
    return total


def _reducer(add: Callable[[Value, Value, Value], Value], doc: str) -> Any:
    @intrinsic
    def reduce_f32(typingctx: Any, x: Any, n: Any) -> Any:
        def codegen(context: Any, b: Value, sig: Any, args: Any) -> Value:
            return _emit(b, *args, add)

        return types.float32(types.int64, types.int64), codegen

    reduce_f32.__doc__ = doc
    return reduce_f32


total_f32 = _reducer(_add, "The sum of ``n`` float32 at an address.")
squares_f32 = _reducer(_add_square, "The sum of squares of ``n`` float32 at an address.")
