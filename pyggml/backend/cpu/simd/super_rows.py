"""Blocks of K-quants in plain rows, packed with a row in each lane.

    RowsSuperBlock(b, kind, rows, offset).pack(b, target, part)

Access: as in ``plain_rows``, but a block's bytes in the order of steps of 32 columns.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ....dtype import GGMLType
from ..layout import ROWS
from ..superblock import FORMATS, LINE, STEP, STEPS, Plane, pieces
from .loop import counted_loop
from .transpose import elements_of, words_of
from .vector import at, broadcast, i16, i32, i64, splat, store, vectors

Value = Any


class RowsSuperBlock:
    """A block of ``lanes`` plain rows; ``offset`` is its place in the rows."""

    def __init__(self, b: Value, kind: int, rows: list[Value], offset: Value) -> None:
        self._kind, self._rows, self._offset = GGMLType(kind), rows, offset

    def pack(self, b: Value, target: Value, p: int) -> None:
        """Store it as part ``p`` of the interleaved block at ``target``."""
        f, v = FORMATS[self._kind], vectors()
        for j in range(f.halves):
            bits = elements_of(b, self._rows, at(b, self._offset, f.d + 2 * j), i16)
            store(b, bits, at(b, target, 2 * (ROWS * j + v.lanes * p)))
        first = at(b, target, 2 * ROWS * f.halves + v.width * p)
        for j, words in enumerate(self._sub_scales(b)):
            store(b, words, at(b, first, LINE * j))
        lines = at(b, target, f.codes_at + v.width * p)

        def step(i: Value, _: list[Value]) -> list[Value]:
            place = b.add(lines, b.mul(i, ir.Constant(i64, LINE * f.bits)))
            for j, line in enumerate(self._lines(b, i)):
                store(b, line, at(b, place, LINE * j))
            return []

        counted_loop(b, ir.Constant(i64, STEPS), [], step)

    def _sub_scales(self, b: Value) -> list[Value]:
        """The sub-scales of four sub-blocks in a word, then the sub-minima."""
        f = FORMATS[self._kind]
        n = len(self._rows)

        def bits(x: Value, down: int, mask: int) -> Value:
            x = b.lshr(x, splat(i32, n, down)) if down > 0 else b.shl(x, splat(i32, n, -down))
            return b.and_(x, splat(i32, n, mask * 0x01010101))

        if self._kind in (GGMLType.Q2_K, GGMLType.Q6_K):
            return words_of(b, self._rows, at(b, self._offset, f.scales))
        if self._kind is GGMLType.Q3_K:  # the 16 bytes before the end of the block's scales
            _, a, c, high = words_of(b, self._rows, at(b, self._offset, f.scales - 4))
            low = [bits(a, 0, 15), bits(c, 0, 15), bits(a, 4, 15), bits(c, 4, 15)]
            found = [b.or_(x, bits(high, 2 * j - 4, 48)) for j, x in enumerate(low)]
            # Less 32 in every byte: 32 is bit 5, whose complement is copied to the bits above.
            flipped = [b.xor(x, splat(i32, n, 0x20202020)) for x in found]
            signs = [b.and_(x, splat(i32, n, 0x20202020)) for x in flipped]
            return [
                b.or_(x, b.or_(b.shl(s, splat(i32, n, 1)), b.shl(s, splat(i32, n, 2))))
                for x, s in zip(flipped, signs, strict=True)
            ]
        a, m, c, _ = words_of(b, self._rows, at(b, self._offset, f.scales))
        high, minima = b.or_(bits(c, 0, 15), bits(a, 2, 48)), b.or_(bits(c, 4, 15), bits(m, 2, 48))
        return [bits(a, 0, 63), high, bits(m, 0, 63), minima]

    def _lines(self, b: Value, step: Value) -> list[Value]:
        """The packed codes of 32 columns."""
        f, n = FORMATS[self._kind], len(self._rows)
        codes: list[Value] = []
        position = 0
        for plane in f.planes:
            place, down = plane_place(b, plane, step)
            words = [
                word
                for half in (0, 16)
                for word in words_of(b, self._rows, at(b, b.add(self._offset, place), half))
            ]
            mask = splat(i32, n, ((1 << plane.bits) - 1) * 0x01010101)
            shift = broadcast(b, b.trunc(down, i32), n)
            bits = [b.and_(b.lshr(word, shift), mask) for word in words]
            up = splat(i32, n, position)
            bits = [b.shl(x, up) for x in bits] if position else bits
            codes = [b.or_(x, y) for x, y in zip(codes, bits, strict=True)] if codes else bits
            position += plane.bits
        lines: list[Value] = [None] * f.bits
        for piece in pieces(f.bits):
            x = codes[piece.slice]
            if piece.width < f.bits:
                mask = splat(i32, n, ((1 << piece.width) - 1 << piece.of) * 0x01010101)
                x = b.and_(x, mask)
            up_by = piece.at - piece.of
            if up_by:
                by = splat(i32, n, abs(up_by))
                x = b.shl(x, by) if up_by > 0 else b.lshr(x, by)
            before = lines[piece.line]
            lines[piece.line] = x if before is None else b.or_(before, x)
        return lines


def plane_place(b: Value, plane: Plane, step: Value) -> tuple[Value, Value]:
    """``Plane.place`` of a step that is known at run time."""

    def const(value: int) -> Value:
        return ir.Constant(i64, value)

    if plane.crossed:
        low = b.and_(b.shl(step, const(1)), const(2))
        high = b.and_(b.lshr(step, const(1)), const(1))
        step = b.or_(b.and_(step, const(4)), b.or_(low, high))
    bit = b.mul(step, const(plane.bits))
    place = b.mul(b.lshr(bit, const(3)), const(STEP))
    return b.add(place, const(plane.at)), b.and_(bit, const(7))
