"""A row of the KV cache, F32, F16, BF16 or Q8_0, as float32: eight elements, or eight rows turned.

    transpose_8x8(F16, k0, k1, ..., k7, d, out, 64)      # elements d..d+7 of eight rows, as columns
    widen_8(Q8_0, v, d, out)                             # elements d..d+7 of one row

The values are exactly those that ``dequantize`` gives, so every way to read a row has equal bits.
``d`` is a multiple of 8. For jitted code; any alignment.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from .loop import literals_of
from .product import Q8_0
from .tile import BF16, F16, F32
from .vector import at, broadcast, f32, i8, i16, i32, i64, load, splat, store, vec, vectors

Value = Any
LANES = 8  # elements of a vector
KINDS = (GGMLType.F16, GGMLType.F32, GGMLType.BF16, GGMLType.Q8_0)
BLOCK = {kind: GGMLType(kind).block_size for kind in (F32, F16, BF16, Q8_0)}
BLOCK_BYTES = {kind: GGMLType(kind).type_size for kind in BLOCK}


def widen(b: Value, kind: int, x: Value) -> Value:
    """Eight elements as they lie in memory as float32 (Q8_0's codes without their scale)."""
    if kind == F16:
        return vectors().half_to_float(b, x)
    if kind == BF16:
        wide = b.shl(b.zext(x, vec(i32, LANES)), splat(i32, LANES, 16))
        return b.bitcast(wide, vec(f32, LANES))
    return b.sitofp(b.sext(x, vec(i32, LANES)), vec(f32, LANES)) if kind == Q8_0 else x


def scale(b: Value, kind: int, block: Value) -> Value:
    """The scale of the block at an address in all lanes; None for floats."""
    if kind != Q8_0:
        return None
    return vectors().half_to_float(b, broadcast(b, load(b, block, i16), LANES))


def load_8(b: Value, kind: int, block: Value, i: int, d: Value) -> Value:
    """Elements i..i+7 behind the start of a block whose ``scale`` is d (floats: of any eight)."""
    element = {F32: f32, F16: i16, BF16: i16, Q8_0: i8}[kind]
    header = 2 if kind == Q8_0 else 0
    width = BLOCK_BYTES[kind] // BLOCK[kind]
    value = widen(b, kind, load(b, at(b, block, header + width * i), vec(element, LANES)))
    return b.fmul(value, d) if kind == Q8_0 else value


def _load_at(b: Value, kind: int, row: Value, d: Value) -> Value:
    """Elements d..d+7 of a row, for a d that is known at run time only."""
    if kind != Q8_0:
        return load_8(b, kind, b.add(row, _times(b, d, BLOCK_BYTES[kind])), 0, None)
    block = b.add(row, _times(b, b.lshr(d, ir.Constant(i64, 5)), BLOCK_BYTES[kind]))
    codes = b.add(block, b.and_(d, ir.Constant(i64, 31)))
    return load_8(b, kind, codes, 0, scale(b, kind, block))


def _times(b: Value, x: Value, factor: int) -> Value:
    return b.mul(x, ir.Constant(i64, factor))


@intrinsic(prefer_literal=True)
def transpose_8x8(
    typingctx: Any, fmt: Any, r0: Any, r1: Any, r2: Any, r3: Any, r4: Any, r5: Any, r6: Any,
    r7: Any, d: Any, out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """Elements d..d+7 of the rows at eight addresses as eight columns of float32."""
    literals = literals_of(fmt)
    if literals is None:
        return None
    (kind,) = literals

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        rows, (d, out, out_stride) = args[1:9], args[9:]
        if kind in (F16, BF16):  # turned as they are: half of the work
            offset = _times(b, d, 2)
            columns = [load(b, b.add(r, offset), vec(i16, LANES)) for r in rows]
        else:
            columns = [_load_at(b, kind, r, d) for r in rows]
        for _ in range(3):  # each round rotates the bits of (row, lane) by one
            columns = _interleave(b, columns)
        for i, column in enumerate(columns):
            value = widen(b, kind, column) if kind in (F16, BF16) else column
            store(b, value, b.add(out, _times(b, out_stride, i)))
        return context.get_dummy_value()

    return types.void(fmt, *[types.int64] * 11), codegen


def _interleave(b: Value, rows: list[Value]) -> list[Value]:
    """Rows i and i + 4 lane by lane: their low halves, then their high halves."""
    out = []
    for i in range(4):
        for first in (0, 4):
            lanes = [first + lane // 2 + 8 * (lane % 2) for lane in range(8)]
            mask = ir.Constant(vec(i32, 8), lanes)
            out.append(b.shuffle_vector(rows[i], rows[i + 4], mask))
    return out


@intrinsic(prefer_literal=True)
def widen_8(typingctx: Any, fmt: Any, row: Any, d: Any, out: Any) -> Any:
    """Elements d..d+7 of a row as float32."""
    literals = literals_of(fmt)
    if literals is None:
        return None
    (kind,) = literals

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, row, d, out = args
        store(b, _load_at(b, kind, row, d), out)
        return context.get_dummy_value()

    return types.void(fmt, *[types.int64] * 3), codegen


@intrinsic(prefer_literal=True)
def element(typingctx: Any, fmt: Any, row: Any, d: Any) -> Any:
    """Element d (any) of a row of floats; rows of Q8_0 are whole blocks and have no tail: 0."""
    literals = literals_of(fmt)
    if literals is None:
        return None
    (kind,) = literals

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        if kind == Q8_0:
            return ir.Constant(f32, 0.0)
        place = b.add(args[1], _times(b, args[2], BLOCK_BYTES[kind]))
        bits = broadcast(b, load(b, place, f32 if kind == F32 else i16), LANES)
        return b.extract_element(widen(b, kind, bits), ir.Constant(i32, 0))

    return types.float32(fmt, types.int64, types.int64), codegen
