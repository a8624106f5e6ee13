"""Blocks of 256 columns as float32, for jitted code: a row of an interleaved one, or one in parts.

    decode_super_block(kind, block, lane, y)
    decode_parts(kind, parts, y)

The bits are those of ``decode_block``: a scale times a sub-scale is exact, so is that times a code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from ..layout import ROWS
from ..superblock import (
    CODES_AT,
    COLUMNS,
    FORMATS,
    LINE,
    STEP,
    STEPS,
    STEPS_AT,
    Format,
    pieces,
)
from .loop import counted_loop, literals_of
from .super_product import moved
from .vector import at, broadcast, f32, i8, i16, i32, i64, load, splat, store, vec, vectors

Value = Any


@intrinsic(prefer_literal=True)
def decode_super_block(typingctx: Any, fmt: Any, block: Any, lane: Any, y: Any) -> Any:
    """Row ``lane`` of an interleaved block as 256 float32 at ``y``."""
    literals = literals_of(fmt)
    if literals is None:
        return None
    f, shared = FORMATS[GGMLType(literals[0])], literals[0] == GGMLType.Q2_K

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
                if not shared:
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
            value = b.fmul(factors(i, 0), _numbers(b, f, b.bitcast(codes, vec(i8, STEP))))
            value = b.fsub(value, factors(i, 1)) if f.minima else value
            store(b, value, b.add(y, b.mul(i, ir.Constant(i64, 4 * STEP))))
            return []

        counted_loop(b, ir.Constant(i64, STEPS), [], step)
        return context.get_dummy_value()

    return types.void(fmt, *[types.int64] * 3), codegen


@intrinsic(prefer_literal=True)
def decode_parts(typingctx: Any, fmt: Any, parts: Any, y: Any) -> Any:
    """A block that was taken apart (``codec/codebook``) as 256 float32 at ``y``."""
    literals = literals_of(fmt)
    if literals is None:
        return None
    f = FORMATS[GGMLType(literals[0])]

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, parts, y = args
        d, steps_at = _scale(b, f, parts), at(b, parts, STEPS_AT)

        def step(i: Value, _: list[Value]) -> list[Value]:
            scale = _factors(b, f, d, i, lambda j: load(b, b.add(steps_at, j), i8))
            place = b.add(at(b, parts, CODES_AT), b.mul(i, ir.Constant(i64, STEP)))
            value = b.fmul(scale, _numbers(b, f, load(b, place, vec(i8, STEP))))
            store(b, value, b.add(y, b.mul(i, ir.Constant(i64, 4 * STEP))))
            return []

        counted_loop(b, ir.Constant(i64, STEPS), [], step)
        return context.get_dummy_value()

    return types.void(fmt, types.int64, types.int64), codegen


def _scale(b: Value, f: Format, place: Value) -> Value:
    """A half float of a block, in the format's unit."""
    value = vectors().half_to_float(b, load(b, place, vec(i16, 1)))
    value = b.extract_element(value, ir.Constant(i32, 0))
    return b.fmul(value, ir.Constant(f32, f.unit)) if f.unit != 1 else value


def _factors(b: Value, f: Format, d: Value, i: Value, byte: Callable[[Value], Value]) -> Value:
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


def _numbers(b: Value, f: Format, codes: Value) -> Value:
    """What 32 codes stand for, <32 x float>."""
    if not f.values:
        numbers = b.sub(b.zext(codes, vec(i32, STEP)), splat(i32, STEP, f.zero))
        return b.sitofp(numbers, vec(f32, STEP))
    v = vectors()
    if v.width > STEP:
        found = [v.look_up(b, f.values, _chosen(b, codes, codes, range(v.width)))]
        found = [_chosen(b, found[0], found[0], range(STEP))]
    else:
        parts = [range(first, first + v.width) for first in range(0, STEP, v.width)]
        found = [v.look_up(b, f.values, _chosen(b, codes, codes, part)) for part in parts]
    values = found[0] if len(found) == 1 else _chosen(b, *found, range(STEP))
    return b.sitofp(values, vec(f32, STEP))


def _chosen(b: Value, x: Value, y: Value, lanes: range) -> Value:
    return b.shuffle_vector(x, y, ir.Constant(vec(i32, len(lanes)), list(lanes)))
