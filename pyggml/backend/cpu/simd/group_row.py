"""A row of an interleaved group, for jitted code: blocks as ggml's bytes, or as float32.

    get_block(kind, group, lane, i, out)           # block i of row ``lane`` as ggml's bytes
    decode_k_block(kind, block, lane, y)           # one of 256 columns as float32

The values have the bits of ``decode_block``: scale times sub-scale is exact, and that times a code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ....dtype import GGMLType
from ....jit import emitted
from ..layout import (
    COLUMNS,
    LINE,
    QUANTIZED,
    ROWS,
    STEP,
    STEPS,
    LayoutK,
    block_bytes,
    is_folded,
    layout_32,
    layout_k,
    pieces,
)
from .kquant_dot import byte_in_lines, moved
from .transpose import gather_bits
from .vector import (
    F16,
    at,
    broadcast,
    const,
    f32,
    for_range,
    i8,
    i32,
    item_at,
    lanes_of,
    like,
    load,
    load_floats,
    shifted,
    splat,
    store,
    times,
    vec,
    vectors,
)

Value = Any


@emitted(literals=1)
def get_block(b: Value, kind: int, group: Value, lane: Value, i: Value, out: Value) -> None:
    """Store block ``i`` of row ``lane`` as ggml's bytes (one value for F16, BF16 and F32).

    Of formats with blocks of up to 32 columns.
    """
    block = item_at(b, group, i, block_bytes(kind))

    def copy(offset: int, size: int, target: int, gathered: bool = False) -> None:
        """``size`` bytes of the row."""
        place = item_at(b, at(b, block, offset), lane, size)
        x = load(b, place, ir.IntType(8 * size))
        if gathered:
            x = b.bitcast(gather_bits(b, b.bitcast(x, vec(i32, 1))), i32)
        store(b, x, at(b, out, target))

    if kind not in QUANTIZED:
        copy(0, GGMLType(kind).type_size, 0)
        return None
    layout = layout_32(kind)
    copy(0, layout.scale_bytes, layout.f.d[0].byte)
    for bits in layout.f.low:
        copy(ROWS * layout.scale_bytes, 2, bits.byte)
    for plane in layout.planes:
        for k in range(plane.width):
            place = layout.plane_at(plane) + LINE * k
            copy(place, 4, plane.byte + 4 * k, gathered=not is_folded(plane))


@emitted(literals=1)
def decode_k_block(b: Value, kind: int, block: Value, lane: Value, y: Value) -> None:
    """Store row ``lane`` of an interleaved block as 256 float32."""
    f = layout_k(kind)
    row = item_at(b, block, lane, 4)
    words_at = at(b, row, 2 * ROWS * f.halves)
    lines_of = [words_at, at(b, words_at, LINE * f.scale_lines if f.minimum_lines else 0)]
    first_half = item_at(b, block, lane, 2)
    halves = [_scale(b, f, at(b, first_half, 2 * ROWS * k)) for k in range(f.halves)]

    def factors(i: Value, which: int) -> Value:
        def byte(j: Value) -> Value:
            x = load(b, b.add(lines_of[which], byte_in_lines(b, j)), i8)
            if not f.is_shared:
                return x
            return shifted(b, x, -4) if which else b.and_(x, like(x, 15))

        return _factors(b, f, halves[which], i, byte)

    with for_range(b, const(STEPS)) as i:
        lines = item_at(b, at(b, row, f.codes_at), i, LINE * f.bits)
        loaded = [load(b, at(b, lines, LINE * j), vec(i8, 4)) for j in range(f.bits)]
        slices = [splat(i8, 4, 0)] * 8
        for piece in pieces(f.bits):
            x = moved(b, loaded[piece.line], piece)
            slices[piece.slice] = b.or_(slices[piece.slice], x)
        codes = ir.Constant(vec(i32, 8), ir.Undefined)
        for k, four in enumerate(slices):
            codes = b.insert_element(codes, b.bitcast(four, i32), ir.Constant(i32, k))
        scale = factors(i, 0)
        codes = b.bitcast(codes, vec(i8, STEP))
        value = b.fmul(scale, code_numbers(b, f.values, f.zero, codes))
        value = b.fsub(value, factors(i, 1)) if f.minima else value
        store(b, value, item_at(b, y, i, 4 * STEP))


def _scale(b: Value, f: LayoutK, place: Value) -> Value:
    """A half float of a block, in the format's unit."""
    value = b.extract_element(load_floats(b, F16, place, 1), ir.Constant(i32, 0))
    return b.fmul(value, ir.Constant(f32, f.unit)) if f.unit != 1 else value


def _factors(b: Value, f: LayoutK, d: Value, i: Value, byte: Callable[[Value], Value]) -> Value:
    """<32 x float>: ``d`` times the bytes of the sub-blocks of step ``i``, where there are any."""
    if f.sub == COLUMNS:
        return broadcast(b, d, STEP)
    n = STEP // f.sub
    found = []
    for k in range(n):
        x = byte(at(b, times(b, i, n), k))
        x = b.sitofp(x, f32) if f.signed else b.uitofp(x, f32)
        found.append(broadcast(b, b.fmul(d, x), f.sub))
    return found[0] if n == 1 else lanes_of(b, *found, range(STEP))


def code_numbers(b: Value, values: tuple[int, ...], zero: int, codes: Value) -> Value:
    """The numbers of 32 codes, <32 x float>: entries of a table of 16 int8, or codes - zero."""
    if not values:
        found = b.sub(b.zext(codes, vec(i32, STEP)), splat(i32, STEP, zero))
        return b.sitofp(found, vec(f32, STEP))
    v = vectors()
    if v.width > STEP:
        parts = [v.look_up(b, values, lanes_of(b, codes, codes, range(v.width)))]
        parts = [lanes_of(b, parts[0], parts[0], range(STEP))]
    else:
        lanes = [range(first, first + v.width) for first in range(0, STEP, v.width)]
        parts = [v.look_up(b, values, lanes_of(b, codes, codes, some)) for some in lanes]
    return b.sitofp(
        parts[0] if len(parts) == 1 else lanes_of(b, *parts, range(STEP)), vec(f32, STEP)
    )
