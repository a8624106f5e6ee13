"""A row of a recurrent state from one token to the next, and what a query reads from it.

    y = decayed_row(before, after, n, decay, x, u, q)   # after = before * decay + x * u; after . q
    y = corrected_row(before, after, n, decay, x, u, z, w, q)          # ... + z * w
    d = dot_f32(x, y, n)

``decay`` is a float32, or the address of a row. Sums are taken in 16 parts, column i in part
i % 16, so that their order is the same for any vectors; columns after the last 16 come last.
Access: all rows front to back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from ....compiler.jit import intrinsic_from_ir
from .isa import fma
from .vector import (
    broadcast,
    const,
    counted_loop,
    f32,
    i32,
    load,
    part_of,
    splat,
    store,
    vec,
)

Value = Any
_LANES = 16
_F32, _I64 = types.float32, types.int64


def _sum_of_columns(b: Value, n: Value, add: Callable[[Value, int, Value], Value]) -> Value:
    """The sum of what ``add(offset in bytes, lanes, sum)`` adds for 16 columns or for one."""

    def block(i: Value, carried: list[Value]) -> list[Value]:
        return [add(b.mul(i, const(4 * _LANES)), _LANES, carried[0])]

    blocks = b.lshr(n, const(_LANES.bit_length() - 1))
    (total,) = counted_loop(b, blocks, [splat(f32, _LANES, 0.0)], block)
    half = _LANES // 2
    while half:
        total = b.fadd(part_of(b, total, 0, half), part_of(b, total, half, half))
        half //= 2
    total = b.extract_element(total, ir.Constant(i32, 0))
    done = b.shl(blocks, const(_LANES.bit_length() - 1))

    def column(i: Value, carried: list[Value]) -> list[Value]:
        return [add(b.shl(b.add(done, i), const(2)), 1, carried[0])]

    (total,) = counted_loop(b, b.sub(n, done), [total], column)
    return total


def _type(lanes: int) -> ir.Type:
    return f32 if lanes == 1 else vec(f32, lanes)


def _multiply_add(b: Value, x: Value, y: Value, z: Value) -> Value:
    if isinstance(x.type, ir.VectorType):
        return fma(b, x, y, z)
    return b.fadd(b.fmul(x, y, flags=["contract"]), z, flags=["contract"])


@intrinsic_from_ir(result=_F32)
def dot_f32(b: Value, x: Value, y: Value, n: Value) -> Value:
    """The dot product of two rows."""

    def add(offset: Value, lanes: int, total: Value) -> Value:
        row, other = (load(b, b.add(a, offset), _type(lanes), 4) for a in (x, y))
        return _multiply_add(b, row, other, total)

    return _sum_of_columns(b, n, add)


def _updated_row(
    b: Value, before: Value, after: Value, n: Value, decay: Value, q: Value, *terms: Value
) -> Value:
    """Emit ``after = before * decay + sum of factor * row``; the sum of ``after * q``."""
    pairs = [(terms[i], terms[i + 1]) for i in range(0, len(terms), 2)]
    scalars = [decay] if decay.type == f32 else []
    scalars += [factor for factor, _ in pairs]
    wide = {id(x): broadcast(b, x, _LANES) for x in scalars}

    def add(offset: Value, lanes: int, total: Value) -> Value:
        def row(address: Value) -> Value:
            return load(b, b.add(address, offset), _type(lanes), 4)

        def scalar(x: Value) -> Value:
            return x if lanes == 1 else wide[id(x)]

        state = b.fmul(row(before), scalar(decay) if decay.type == f32 else row(decay))
        for factor, u in pairs:
            state = _multiply_add(b, scalar(factor), row(u), state)
        store(b, state, b.add(after, offset), 4)
        return _multiply_add(b, state, row(q), total)

    return _sum_of_columns(b, n, add)


def _typed(*names: str) -> Callable[..., Any]:
    """The signature: addresses and counts are int64, ``decay`` either, factors float32."""

    def signature(*given: Any) -> Any:
        args = [
            _F32 if name == "factor" or (name == "decay" and isinstance(x, types.Float)) else _I64
            for name, x in zip(names, given, strict=True)
        ]
        return _F32(*args)

    return signature


@intrinsic_from_ir(typed=_typed("before", "after", "n", "decay", "factor", "u", "q"))
def decayed_row(
    b: Value, before: Value, after: Value, n: Value, decay: Value, x: Value, u: Value, q: Value
) -> Value:
    """``after = before * decay + x * u``; returns ``after . q``."""
    return _updated_row(b, before, after, n, decay, q, x, u)


@intrinsic_from_ir(typed=_typed("before", "after", "n", "decay", "factor", "u", "factor", "w", "q"))
def corrected_row(
    b: Value, before: Value, after: Value, n: Value, decay: Value, x: Value, u: Value, z: Value,
    w: Value, q: Value,
) -> Value:  # fmt: skip
    """``after = before * decay + x * u + z * w``; returns ``after . q``."""
    return _updated_row(b, before, after, n, decay, q, x, u, z, w)
