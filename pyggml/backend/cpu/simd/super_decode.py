"""A row of a block of 256 columns that 16 rows interleave, as float32, for jitted code.

decode_super_block(kind, block_address, lane, y)

The bits are those of ``decode_block``: a scale times a sub-scale is exact, so is that times a code.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from ..layout import ROWS
from ..superblock import FORMATS, LINE, STEP, STEPS, pieces
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
    kind = GGMLType(literals[0])
    f, shared = FORMATS[kind], kind is GGMLType.Q2_K

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, block, lane, y = args
        row = b.add(block, b.shl(lane, ir.Constant(i64, 2)))
        words_at = at(b, row, 2 * ROWS * f.halves)
        minima_at = at(b, words_at, LINE * f.scale_lines if f.minimum_lines else 0)

        def half(which: int) -> Value:
            place = b.add(at(b, block, 2 * ROWS * which), b.shl(lane, ir.Constant(i64, 1)))
            value = vectors().half_to_float(b, load(b, place, vec(i16, 1)))
            return b.extract_element(value, ir.Constant(i32, 0))

        halves = [half(which) for which in range(f.halves)]

        def factors(i: Value, lines: Value, which: int) -> Value:
            """<32 x float>: those of the sub-blocks of a step."""
            n = max(1, STEP // f.sub)
            found = []
            for k in range(n):
                j = at(b, b.mul(i, ir.Constant(i64, n)), k)
                line = b.shl(b.lshr(j, ir.Constant(i64, 2)), ir.Constant(i64, 6))
                x = load(b, b.add(lines, b.add(line, b.and_(j, ir.Constant(i64, 3)))), i8)
                if shared:
                    x = b.lshr(x, ir.Constant(i8, 4)) if which else b.and_(x, ir.Constant(i8, 15))
                x = b.sitofp(x, f32) if f.signed else b.uitofp(x, f32)
                found.append(broadcast(b, b.fmul(halves[which], x), STEP // n))
            lanes = ir.Constant(vec(i32, STEP), list(range(STEP)))
            return found[0] if n == 1 else b.shuffle_vector(*found, lanes)

        def step(i: Value, _: list[Value]) -> list[Value]:
            lines = b.add(at(b, row, f.codes_at), b.mul(i, ir.Constant(i64, LINE * f.bits)))
            loaded = [load(b, at(b, lines, LINE * j), vec(i8, 4)) for j in range(f.bits)]
            slices = [splat(i8, 4, 0)] * 8
            for piece in pieces(f.bits):
                slices[piece.slice] = b.or_(
                    slices[piece.slice], moved(b, loaded[piece.line], piece)
                )
            x = ir.Constant(vec(i32, 8), ir.Undefined)
            for k, codes in enumerate(slices):
                x = b.insert_element(x, b.bitcast(codes, i32), ir.Constant(i32, k))
            x = b.bitcast(x, vec(i8, STEP))
            if f.values:
                x = _looked_up(b, f.values, x)
            x = (b.sext if f.values else b.zext)(x, vec(i32, STEP))
            x = b.sub(x, splat(i32, STEP, f.zero)) if f.zero else x
            scale = factors(i, words_at, 0) if f.scale_lines else broadcast(b, halves[0], STEP)
            value = b.fmul(scale, b.sitofp(x, vec(f32, STEP)))
            if f.minima:
                value = b.fsub(value, factors(i, minima_at, 1))
            store(b, value, b.add(y, b.mul(i, ir.Constant(i64, 4 * STEP))))
            return []

        counted_loop(b, ir.Constant(i64, STEPS), [], step)
        return context.get_dummy_value()

    return types.void(fmt, *[types.int64] * 3), codegen


def _looked_up(b: Value, values: tuple[int, ...], codes: Value) -> Value:
    """What 32 codes stand for."""
    v = vectors()

    def lanes(x: Value, y: Value, of: range) -> Value:
        return b.shuffle_vector(x, y, ir.Constant(vec(i32, len(of)), list(of)))

    if v.width > STEP:
        wide = v.look_up(b, values, lanes(codes, codes, range(2 * STEP)))
        return lanes(wide, wide, range(STEP))
    parts = [range(first, first + v.width) for first in range(0, STEP, v.width)]
    found = [v.look_up(b, values, lanes(codes, codes, part)) for part in parts]
    return found[0] if len(found) == 1 else lanes(*found, range(STEP))
