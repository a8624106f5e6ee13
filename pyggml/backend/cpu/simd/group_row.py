"""A row of an interleaved group, for jitted code: blocks as ggml's bytes, or as float32.

    get_block(kind, group, lane, i, out)           # block i of row ``lane`` as ggml's bytes
    decode_k_block(kind, block, lane, y)           # one of 256 columns as float32

The bits are those of ``decode_block``: a scale times a sub-scale is exact, so is that times a code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
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
from .kquant_dot import moved
from .loop import counted_loop, literals_of
from .transpose import gather_bits
from .vector import at, broadcast, f32, i8, i16, i32, i64, load, splat, store, vec, vectors

Value = Any


@intrinsic(prefer_literal=True)
def get_block(typingctx: Any, fmt: Any, group: Any, lane: Any, i: Any, out: Any) -> Any:
    """Block ``i`` of row ``lane`` of a group, as ggml's bytes (one value for F16, BF16 and F32).

    Of formats with blocks of up to 32 columns.
    """
    literals = literals_of(fmt)
    if literals is None:
        return None
    (kind,) = literals

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, group, lane, i, out = args
        block = b.add(group, b.mul(i, ir.Constant(i64, block_bytes(kind))))

        def copy(offset: int, size: int, target: int, gathered: bool = False) -> None:
            """``size`` bytes of the row."""
            place = b.add(at(b, block, offset), b.mul(lane, ir.Constant(i64, size)))
            x = load(b, place, ir.IntType(8 * size))
            if gathered:
                x = b.bitcast(gather_bits(b, b.bitcast(x, vec(i32, 1))), i32)
            store(b, x, at(b, out, target))

        if kind not in QUANTIZED:
            copy(0, GGMLType(kind).type_size, 0)
            return context.get_dummy_value()
        layout = layout_32(kind)
        copy(0, layout.scale_bytes, layout.f.d[0].at // 8)
        for bits in layout.f.low:
            copy(ROWS * layout.scale_bytes, 2, bits.at // 8)
        for plane in layout.planes:
            for k in range(plane.width):
                place = layout.plane_at(plane) + LINE * k
                copy(place, 4, plane.at // 8 + 4 * k, gathered=not is_folded(plane))
        return context.get_dummy_value()

    return types.void(fmt, *[types.int64] * 4), codegen


@intrinsic(prefer_literal=True)
def decode_k_block(typingctx: Any, fmt: Any, block: Any, lane: Any, y: Any) -> Any:
    """Row ``lane`` of an interleaved block as 256 float32 at ``y``."""
    literals = literals_of(fmt)
    if literals is None:
        return None
    f = layout_k(literals[0])

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, block, lane, y = args
        row = b.add(block, b.shl(lane, ir.Constant(i64, 2)))
        words_at = at(b, row, 2 * ROWS * f.halves)
        lines_of = [words_at, at(b, words_at, LINE * f.scale_lines if f.minimum_lines else 0)]
        first_half = b.add(block, b.shl(lane, ir.Constant(i64, 1)))
        halves = [_scale(b, f, at(b, first_half, 2 * ROWS * k)) for k in range(f.halves)]

        def factors(i: Value, which: int) -> Value:
            def byte(j: Value) -> Value:
                line = b.shl(b.lshr(j, ir.Constant(i64, 2)), ir.Constant(i64, 6))
                place = b.add(lines_of[which], b.add(line, b.and_(j, ir.Constant(i64, 3))))
                x = load(b, place, i8)
                if not f.is_shared:
                    return x
                return b.lshr(x, ir.Constant(i8, 4)) if which else b.and_(x, ir.Constant(i8, 15))

            return _factors(b, f, halves[which], i, byte)

        def step(i: Value, _: list[Value]) -> list[Value]:
            lines = b.add(at(b, row, f.codes_at), b.mul(i, ir.Constant(i64, LINE * f.bits)))
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
            value = b.fmul(scale, numbers(b, f.values, f.zero, codes))
            value = b.fsub(value, factors(i, 1)) if f.minima else value
            store(b, value, b.add(y, b.mul(i, ir.Constant(i64, 4 * STEP))))
            return []

        counted_loop(b, ir.Constant(i64, STEPS), [], step)
        return context.get_dummy_value()

    return types.void(fmt, *[types.int64] * 3), codegen


def _scale(b: Value, f: LayoutK, place: Value) -> Value:
    """A half float of a block, in the format's unit."""
    value = vectors().half_to_float(b, load(b, place, vec(i16, 1)))
    value = b.extract_element(value, ir.Constant(i32, 0))
    return b.fmul(value, ir.Constant(f32, f.unit)) if f.unit != 1 else value


def _factors(b: Value, f: LayoutK, d: Value, i: Value, byte: Callable[[Value], Value]) -> Value:
    """<32 x float>: ``d`` times the bytes of the sub-blocks of step ``i``, where there are any."""
    if f.sub == COLUMNS:
        return broadcast(b, d, STEP)
    n = STEP // f.sub
    found = []
    for k in range(n):
        x = byte(at(b, b.mul(i, ir.Constant(i64, n)), k))
        x = b.sitofp(x, f32) if f.signed else b.uitofp(x, f32)
        found.append(broadcast(b, b.fmul(d, x), f.sub))
    return found[0] if n == 1 else _chosen(b, *found, range(STEP))


def numbers(b: Value, values: tuple[int, ...], zero: int, codes: Value) -> Value:
    """What 32 codes stand for, <32 x float>: of 16 int8 ``values``, or less ``zero``."""
    if not values:
        found = b.sub(b.zext(codes, vec(i32, STEP)), splat(i32, STEP, zero))
        return b.sitofp(found, vec(f32, STEP))
    v = vectors()
    if v.width > STEP:
        parts = [v.look_up(b, values, _chosen(b, codes, codes, range(v.width)))]
        parts = [_chosen(b, parts[0], parts[0], range(STEP))]
    else:
        lanes = [range(first, first + v.width) for first in range(0, STEP, v.width)]
        parts = [v.look_up(b, values, _chosen(b, codes, codes, some)) for some in lanes]
    return b.sitofp(
        parts[0] if len(parts) == 1 else _chosen(b, *parts, range(STEP)), vec(f32, STEP)
    )


def _chosen(b: Value, x: Value, y: Value, lanes: range) -> Value:
    return b.shuffle_vector(x, y, ir.Constant(vec(i32, len(lanes)), list(lanes)))
