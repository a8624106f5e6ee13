"""From groups of 16 interleaved rows of K-quants back to ggml's blocks, for jitted code.

take_super_block(kind, block_address, lane, out)
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from ..layout import ROWS
from ..superblock import FORMATS, LINE, STEPS, pieces
from .loop import counted_loop, literals_of
from .super_rows import plane_place
from .vector import at, i8, i16, i32, i64, load, store, vec

Value = Any


@intrinsic(prefer_literal=True)
def take_super_block(typingctx: Any, fmt: Any, block: Any, lane: Any, out: Any) -> Any:
    """Row ``lane`` of an interleaved block as ggml's bytes."""
    literals = literals_of(fmt)
    if literals is None:
        return None
    kind = GGMLType(literals[0])
    f = FORMATS[kind]

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, block, lane, out = args
        for j in range(f.halves):
            place = b.add(at(b, block, 2 * ROWS * j), b.shl(lane, ir.Constant(i64, 1)))
            store(b, load(b, place, i16), at(b, out, f.d + 2 * j))
        row = b.add(block, b.shl(lane, ir.Constant(i64, 2)))
        first = at(b, row, 2 * ROWS * f.halves)
        n_words = f.scale_lines + f.minimum_lines
        words = [load(b, at(b, first, LINE * j), i32) for j in range(n_words)]
        for j, word in enumerate(_packed_scales(b, kind, words)):
            store(b, word, at(b, out, f.scales + 4 * j))
        for place in (p.at + i for p in f.planes for i in range(0, 32 * p.bits, 32)):
            store(b, ir.Constant(vec(i8, 32), [0] * 32), at(b, out, place))

        def step(i: Value, _: list[Value]) -> list[Value]:
            lines = b.add(at(b, row, f.codes_at), b.mul(i, ir.Constant(i64, LINE * f.bits)))
            loaded = [load(b, at(b, lines, LINE * j), i32) for j in range(f.bits)]
            codes = [ir.Constant(i32, 0)] * 8
            for piece in pieces(f.bits):
                x = _bits(b, loaded[piece.line], piece.at - piece.of, piece.of, piece.width)
                codes[piece.slice] = b.or_(codes[piece.slice], x)
            position = 0
            for plane in f.planes:
                place, shift = plane_place(b, plane, i)
                for k, code in enumerate(codes):
                    x = b.shl(_bits(b, code, position, 0, plane.bits), b.trunc(shift, i32))
                    target = at(b, b.add(out, place), 4 * k)
                    store(b, b.or_(load(b, target, i32), x), target)
                position += plane.bits
            return []

        counted_loop(b, ir.Constant(i64, STEPS), [], step)
        return context.get_dummy_value()

    return types.void(fmt, *[types.int64] * 3), codegen


def _bits(b: Value, word: Value, down: int, of: int, width: int) -> Value:
    """Of each byte shifted down: ``width`` bits from bit ``of`` on."""
    shift = ir.Constant(i32, abs(down))
    word = b.lshr(word, shift) if down >= 0 else b.shl(word, shift)
    return b.and_(word, ir.Constant(i32, ((1 << width) - 1 << of) * 0x01010101))


def _packed_scales(b: Value, kind: GGMLType, words: list[Value]) -> list[Value]:
    """The words of sub-scales (and sub-minima) as ggml's."""
    if kind in (GGMLType.Q2_K, GGMLType.Q6_K):
        return words
    if kind is GGMLType.Q3_K:
        words = [b.xor(w, ir.Constant(i32, 0x20202020)) for w in words]  # 32 more, of six bits
        low = [
            b.or_(_bits(b, words[j], 0, 0, 4), _bits(b, words[j + 2], -4, 4, 4)) for j in range(2)
        ]
        high = [_bits(b, w, 4 - 2 * j, 2 * j, 2) for j, w in enumerate(words)]
        return [*low, b.or_(b.or_(high[0], high[1]), b.or_(high[2], high[3]))]
    a, a_high, m, m_high = words
    return [
        b.or_(a, _bits(b, a_high, -2, 6, 2)),
        b.or_(m, _bits(b, m_high, -2, 6, 2)),
        b.or_(_bits(b, a_high, 0, 0, 4), _bits(b, m_high, -4, 4, 4)),
    ]
