"""Rows of the KV cache as float32: eight elements, or a transpose of eight rows.

    transpose_8x8(F16, k0, k1, ..., k7, d, out, 64)      # elements d..d+7 of eight rows, as columns
    widen_8(Q4_0, v, d, out)                             # elements d..d+7 of one row

The values are exactly those of ``dequantize``, so every way to read a row has equal bits: a code
times a half float is not rounded. ``d`` is a multiple of 8. For jitted
code; any alignment.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ....compiler.jit import intrinsic_from_ir
from ....dtype import GGMLType
from ....quants import BLOCK_TYPES
from ....quants.block import BlockType
from ..weights.layout import Layout32, is_bit_row, is_folded, layout_32
from .isa import fma, load_floats, vectors, widen
from .vector import (
    BF16,
    F16,
    F32,
    at,
    broadcast,
    concat,
    const,
    f32,
    i8,
    i16,
    i32,
    item_at,
    lanes_of,
    load,
    part_of,
    splat,
    store,
    times,
    vec,
)

Value = Any
LANES = 8  # elements of a vector
REVERSED = (0, 4, 2, 6, 1, 5, 3, 7)  # 0 to 7 with their three bits reversed


def _is_read(f: BlockType) -> bool:
    """Whether rows of a format's blocks are read here.

    Blocks have 32 codes, of a nibble or a byte and at most one plane of fifth bits, with a half
    float as scale at their start, and a zero or a minimum.
    """
    if f.columns != 32 or f.scale != "f16" or f.steps or f.unit != 1 or f.d[0].at:
        return False
    main, *upper = sorted(f.planes, key=lambda bits: bits.shift)
    fits = is_folded(main) and main.width >= 4 and f.signed == (main.width == 8)
    fits = fits and len(upper) <= (not f.values) and all(map(is_bit_row, upper))
    return fits and not (f.low and f.zero)


BLOCKS = {int(type): layout_32(type) for type, f in BLOCK_TYPES.items() if _is_read(f)}
KINDS = tuple(GGMLType(kind) for kind in (F16, F32, BF16, *BLOCKS))
BLOCK = {int(kind): kind.block_size for kind in KINDS}
BLOCK_BYTES = {int(kind): kind.type_size for kind in KINDS}


def scales(b: Value, kind: int, block: Value) -> list[Value]:
    """The scale of a block in all lanes, and its minimum if it has one; nothing of floats."""
    fields = (*BLOCKS[kind].f.d, *BLOCKS[kind].f.low) if kind in BLOCKS else ()
    words = [broadcast(b, load(b, at(b, block, bits.byte), i16), LANES) for bits in fields]
    return [widen(b, F16, x) for x in words]


def load_8(b: Value, kind: int, block: Value, i: int | Value, of_block: list[Value]) -> Value:
    """Elements i..i+7 of a block with its ``scales``; of floats, counted from any element."""
    i = const(i) if isinstance(i, int) else i
    if kind not in BLOCKS:
        return load_floats(b, kind, item_at(b, block, i, BLOCK_BYTES[kind]), LANES)
    numbers = b.sitofp(_numbers(b, BLOCKS[kind], block, i), vec(f32, LANES))
    return fma(b, numbers, *of_block) if len(of_block) == 2 else b.fmul(numbers, *of_block)


def load_twice(b: Value, kind: int, pair: list[tuple[Value, int, list[Value]]]) -> Value:
    """Sixteen elements: ``load_8`` of two (block, i, scales of the block)."""
    if kind in BLOCKS:
        numbers = b.sitofp(_numbers_twice(b, BLOCKS[kind], pair), vec(f32, 2 * LANES))
        of_blocks = [concat(b, [*both]) for both in zip(*(x for *_, x in pair), strict=True)]
        return fma(b, numbers, *of_blocks) if len(of_blocks) == 2 else b.fmul(numbers, *of_blocks)
    raw = vec(f32 if kind == F32 else i16, LANES)
    places = (at(b, block, BLOCK_BYTES[kind] * i) for block, i, _ in pair)
    return widen(b, kind, concat(b, [load(b, place, raw) for place in places]))


def _numbers(b: Value, layout: Layout32, block: Value, i: Value) -> Value:
    """The numbers of codes i..i+7 of a block, before the scale, <8 x i32>."""
    codes = at(b, block, layout.main.byte)
    if layout.main.width == 8:
        return b.sext(load(b, b.add(codes, i), vec(i8, LANES)), vec(i32, LANES))
    place = b.add(codes, b.and_(i, const(15)))
    both = b.zext(load(b, place, vec(i8, LANES)), vec(i32, LANES))
    shift = b.and_(b.lshr(i, const(2)), const(4))  # 4 for the high nibble
    n = b.lshr(both, broadcast(b, b.trunc(shift, i32), LANES))
    n = b.and_(n, splat(i32, LANES, 15))
    for fifth_bits in layout.upper:
        place = b.add(at(b, block, fifth_bits.byte), b.lshr(i, const(3)))
        eight = b.shl(b.zext(load(b, place, i8), i32), ir.Constant(i32, 4))
        fifth = b.lshr(broadcast(b, eight, LANES), ir.Constant(vec(i32, LANES), [*range(LANES)]))
        n = b.or_(n, b.and_(fifth, splat(i32, LANES, 16)))
    if layout.values:  # looked up in a whole vector
        n = b.trunc(n, vec(i8, LANES))
        n = lanes_of(b, n, n, (i % LANES for i in range(vectors().width)))
        found = part_of(b, vectors().look_up(b, layout.values, n), 0, LANES)
        return b.sext(found, vec(i32, LANES))
    return b.sub(n, splat(i32, LANES, layout.f.zero)) if layout.f.zero else n


def _numbers_twice(b: Value, layout: Layout32, pair: list[Any]) -> Value:
    """``_numbers`` of two (block, i, scales of the block), <16 x i32>."""
    if layout.main.width != 8:
        return concat(b, [_numbers(b, layout, block, const(i)) for block, i, _ in pair])
    (first, i, _), (second, j, _) = pair
    if first is second and j == i + LANES:
        codes = load(b, at(b, first, layout.main.byte + i), vec(i8, 2 * LANES))
    else:
        places = (at(b, block, layout.main.byte + k) for block, k, _ in pair)
        codes = concat(b, [load(b, place, vec(i8, LANES)) for place in places])
    return b.sext(codes, vec(i32, 2 * LANES))


def _load_at(b: Value, kind: int, row: Value, d: Value) -> Value:
    """Elements d..d+7 of a row, d a run-time value."""
    if kind not in BLOCKS:
        return load_8(b, kind, row, d, [])
    block = item_at(b, row, b.lshr(d, const(5)), BLOCK_BYTES[kind])
    return load_8(b, kind, block, b.and_(d, const(31)), scales(b, kind, block))


@intrinsic_from_ir(literals=1)
def transpose_8x8(
    b: Value, kind: int, r0: Value, r1: Value, r2: Value, r3: Value, r4: Value, r5: Value,
    r6: Value, r7: Value, d: Value, out: Value, out_stride: Value,
) -> None:  # fmt: skip
    """Store elements d..d+7 of eight rows as columns of float32, in the order ``REVERSED``."""
    rows = (r0, r1, r2, r3, r4, r5, r6, r7)
    if kind in (F16, BF16):  # transposed before they are converted: half of the work
        offset = times(b, d, 2)
        columns = [load(b, b.add(r, offset), vec(i16, LANES)) for r in rows]
    else:
        columns = [_load_at(b, kind, r, d) for r in rows]
    for _ in range(3):  # each round rotates the bits of (row, lane) by one
        columns = _interleave(b, columns)
    for i, column in enumerate(columns):
        value = widen(b, kind, column) if kind in (F16, BF16) else column
        store(b, value, item_at(b, out, REVERSED[i], out_stride))


def _interleave(b: Value, rows: list[Value]) -> list[Value]:
    """Rows i and i + 4 lane by lane: their low halves, then their high halves."""
    out = []
    for i in range(4):
        for first in (0, 4):
            lanes = [first + lane // 2 + 8 * (lane % 2) for lane in range(8)]
            out.append(lanes_of(b, rows[i], rows[i + 4], lanes))
    return out


@intrinsic_from_ir(literals=1)
def widen_8(b: Value, kind: int, row: Value, d: Value, out: Value) -> None:
    """Store elements d..d+7 of a row as float32."""
    store(b, _load_at(b, kind, row, d), out)


@intrinsic_from_ir(literals=1, result=types.float32)
def element(b: Value, kind: int, row: Value, d: Value) -> Value:
    """Element d of a row of floats; 0 for rows of blocks, which have no tail."""
    if kind in BLOCKS:
        return ir.Constant(f32, 0.0)
    place = item_at(b, row, d, BLOCK_BYTES[kind])
    bits = broadcast(b, load(b, place, f32 if kind == F32 else i16), LANES)
    return b.extract_element(widen(b, kind, bits), ir.Constant(i32, 0))
