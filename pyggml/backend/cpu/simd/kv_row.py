"""A row of the KV cache as float32: eight elements, or eight rows turned.

    transpose_8x8(F16, k0, k1, ..., k7, d, out, 64)      # elements d..d+7 of eight rows, as columns
    widen_8(Q4_0, v, d, out)                             # elements d..d+7 of one row

The values are exactly those that ``dequantize`` gives, so every way to read a row has equal bits:
a code times a half float has too few digits to be rounded. ``d`` is a multiple of 8. For jitted
code; any alignment.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from ....quants.block import BLOCK_TYPES, BlockType
from ..layout import is_bit_row, is_folded, padded_values
from .element import BF16, F16, F32
from .loop import literals_of
from .vector import at, broadcast, f32, fma, i8, i16, i32, i64, load, splat, store, vec, vectors

Value = Any
LANES = 8  # elements of a vector
REVERSED = (0, 4, 2, 6, 1, 5, 3, 7)  # their numbers with the three bits reversed


class Codes(NamedTuple):
    """A block of 32 codes with a half float as scale, of a format whose rows a cache may have.

    ``codes_at``: the byte of the codes; of 4 bits, element j of 16 lies in the low half of byte j
    and j + 16 in the high one; ``fifth_at``: that of fifth bits, bit j for element j, or -1.
    """

    codes_at: int
    bits: int
    fifth_at: int
    zero: int
    low: tuple[int, ...]  # the byte of a minimum, where there is one
    values: tuple[int, ...]  # 16 int8 that codes stand for, or none


def _codes_of(f: BlockType) -> Codes | None:
    """How a format's blocks are read here; None if they are not."""
    if f.columns != 32 or f.scale != "f16" or f.steps or f.unit != 1 or f.d[0].at:
        return None
    main, *rest = sorted(f.planes, key=lambda bits: bits.shift)
    fits = is_folded(main) and main.width >= 4 and f.signed == (main.width == 8)
    if not fits or len(rest) > (not f.values) or not all(map(is_bit_row, rest)):
        return None
    if f.low and f.zero:
        return None
    fifth_at = rest[0].at // 8 if rest else -1
    low = tuple(bits.at // 8 for bits in f.low)
    return Codes(main.at // 8, main.width, fifth_at, f.zero, low, padded_values(f))


CODES = {int(t): codes for t, f in BLOCK_TYPES.items() if (codes := _codes_of(f)) is not None}
KINDS = tuple(GGMLType(kind) for kind in (F16, F32, BF16, *CODES))
BLOCK = {int(kind): kind.block_size for kind in KINDS}
BLOCK_BYTES = {int(kind): kind.type_size for kind in KINDS}


def widen(b: Value, kind: int, x: Value) -> Value:
    """Floats as they lie in memory as float32."""
    if kind == F16:
        return vectors().half_to_float(b, x)
    if kind == BF16:
        n = x.type.count
        wide = b.shl(b.zext(x, vec(i32, n)), splat(i32, n, 16))
        return b.bitcast(wide, vec(f32, n))
    return x


def scales(b: Value, kind: int, block: Value) -> list[Value]:
    """Scale and minimum of the block at an address, as it has them, in all lanes."""
    places = (0, *CODES[kind].low) if kind in CODES else ()
    words = [broadcast(b, load(b, at(b, block, place), i16), LANES) for place in places]
    return [vectors().half_to_float(b, x) for x in words]


def load_8(b: Value, kind: int, block: Value, i: int | Value, of_block: list[Value]) -> Value:
    """Elements i..i+7 behind the start of a block with its ``scales`` (floats: of any eight)."""
    i = ir.Constant(i64, i) if isinstance(i, int) else i
    if kind not in CODES:
        place = b.add(block, _times(b, i, BLOCK_BYTES[kind]))
        return widen(b, kind, load(b, place, vec(f32 if kind == F32 else i16, LANES)))
    numbers = b.sitofp(_numbers(b, CODES[kind], block, i), vec(f32, LANES))
    return fma(b, numbers, *of_block) if CODES[kind].low else b.fmul(numbers, *of_block)


def load_twice(b: Value, kind: int, pair: list[tuple[Value, int, list[Value]]]) -> Value:
    """Sixteen elements: of each (block, i, scales of the block) those that ``load_8`` gives."""
    if kind in CODES:
        return joined(b, *(load_8(b, kind, *place) for place in pair))
    raw = vec(f32 if kind == F32 else i16, LANES)
    places = (at(b, block, BLOCK_BYTES[kind] * i) for block, i, _ in pair)
    return widen(b, kind, joined(b, *(load(b, place, raw) for place in places)))


def joined(b: Value, x: Value, y: Value) -> Value:
    """The lanes of two vectors of eight."""
    return b.shuffle_vector(x, y, ir.Constant(vec(i32, 2 * LANES), list(range(2 * LANES))))


def _numbers(b: Value, codes: Codes, block: Value, i: Value) -> Value:
    """What codes i..i+7 of a block stand for, before its scale: <8 x i32>."""
    if codes.bits == 8:
        place = b.add(at(b, block, codes.codes_at), i)
        return b.sext(load(b, place, vec(i8, LANES)), vec(i32, LANES))
    place = b.add(at(b, block, codes.codes_at), b.and_(i, ir.Constant(i64, 15)))
    both = b.zext(load(b, place, vec(i8, LANES)), vec(i32, LANES))
    shift = b.and_(b.lshr(i, ir.Constant(i64, 2)), ir.Constant(i64, 4))  # the high half: 4
    n = b.lshr(both, broadcast(b, b.trunc(shift, i32), LANES))
    n = b.and_(n, splat(i32, LANES, 15))
    if codes.fifth_at >= 0:
        place = b.add(at(b, block, codes.fifth_at), b.lshr(i, ir.Constant(i64, 3)))
        eight = b.shl(b.zext(load(b, place, i8), i32), ir.Constant(i32, 4))
        fifth = b.lshr(broadcast(b, eight, LANES), ir.Constant(vec(i32, LANES), [*range(LANES)]))
        n = b.or_(n, b.and_(fifth, splat(i32, LANES, 16)))
    if codes.values:
        return _looked_up(b, codes.values, n)
    return b.sub(n, splat(i32, LANES, codes.zero)) if codes.zero else n


def _looked_up(b: Value, values: tuple[int, ...], n: Value) -> Value:
    """The values of eight codes: bytes of a whole vector are looked up, eight are wanted."""
    n = b.trunc(n, vec(i8, LANES))
    spread = [i % LANES for i in range(vectors().width)]
    n = b.shuffle_vector(n, n, ir.Constant(vec(i32, len(spread)), spread))
    found = vectors().look_up(b, values, n)
    first = ir.Constant(vec(i32, LANES), [*range(LANES)])
    return b.sext(b.shuffle_vector(found, found, first), vec(i32, LANES))


def _load_at(b: Value, kind: int, row: Value, d: Value) -> Value:
    """Elements d..d+7 of a row, for a d that is known at run time only."""
    if kind not in CODES:
        return load_8(b, kind, row, d, [])
    block = b.add(row, _times(b, b.lshr(d, ir.Constant(i64, 5)), BLOCK_BYTES[kind]))
    return load_8(b, kind, block, b.and_(d, ir.Constant(i64, 31)), scales(b, kind, block))


def _times(b: Value, x: Value, factor: int) -> Value:
    return b.mul(x, ir.Constant(i64, factor))


@intrinsic(prefer_literal=True)
def transpose_8x8(
    typingctx: Any, fmt: Any, r0: Any, r1: Any, r2: Any, r3: Any, r4: Any, r5: Any, r6: Any,
    r7: Any, d: Any, out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """Elements d..d+7 of the rows at eight addresses as columns of float32, ``REVERSED``."""
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
            store(b, value, b.add(out, _times(b, out_stride, REVERSED[i])))
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
    """Element d (any) of a row of floats; rows of blocks have no tail: 0."""
    literals = literals_of(fmt)
    if literals is None:
        return None
    (kind,) = literals

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        if kind in CODES:
            return ir.Constant(f32, 0.0)
        place = b.add(args[1], _times(b, args[2], BLOCK_BYTES[kind]))
        bits = broadcast(b, load(b, place, f32 if kind == F32 else i16), LANES)
        return b.extract_element(widen(b, kind, bits), ir.Constant(i32, 0))

    return types.float32(fmt, types.int64, types.int64), codegen
