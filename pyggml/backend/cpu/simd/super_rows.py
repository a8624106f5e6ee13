"""Blocks of 256 columns in plain rows, packed with a row in each lane.

    RowsSuperBlock(b, kind, rows, offset).pack(b, target, part)

Access: as in ``plain_rows``, but a block's bytes in the order of steps of 32 columns.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ....dtype import GGMLType
from ..layout import ROWS
from ..superblock import COLUMNS, FORMATS, LINE, STEP, STEPS, Plane, pieces
from .loop import counted_loop
from .ternary import digits_of
from .transpose import elements_of, words_of
from .vector import at, broadcast, i16, i32, i64, splat, store, vectors

Value = Any


class RowsSuperBlock:
    """A block of ``lanes`` plain rows (or its parts); ``offset`` is its place in the rows."""

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

        def put(place: Value, codes: list[Value]) -> None:
            for j, line in enumerate(self._lines(b, codes)):
                store(b, line, at(b, place, LINE * j))

        def step(i: Value, _: list[Value]) -> list[Value]:
            put(b.add(lines, b.mul(i, ir.Constant(i64, LINE * f.bits))), self._codes(b, i))
            return []

        if self._kind is GGMLType.TQ1_0:
            codes = digits_of(b, self._rows, self._offset)
            for i in range(STEPS):
                put(at(b, lines, LINE * f.bits * i), codes[8 * i : 8 * (i + 1)])
        else:
            counted_loop(b, ir.Constant(i64, STEPS), [], step)

    def _sub_scales(self, b: Value) -> list[Value]:
        """The sub-scales of four sub-blocks in a word, then the sub-minima."""
        f = FORMATS[self._kind]
        n = len(self._rows)

        def bits(x: Value, down: int, mask: int) -> Value:
            x = b.lshr(x, splat(i32, n, down)) if down > 0 else b.shl(x, splat(i32, n, -down))
            return b.and_(x, splat(i32, n, mask * 0x01010101))

        def less_32(x: Value) -> Value:  # in every byte: 32 is bit 5, whose complement goes above
            flipped = b.xor(x, splat(i32, n, 0x20202020))
            signs = b.and_(flipped, splat(i32, n, 0x20202020))
            return b.or_(flipped, b.or_(bits(signs, -1, 64), bits(signs, -2, 128)))

        if f.sub == COLUMNS:
            return []
        if self._kind in (GGMLType.Q2_K, GGMLType.Q6_K) or f.parts:
            return words_of(b, self._rows, at(b, self._offset, f.scales))[: f.scale_lines]
        if self._kind is GGMLType.Q3_K:  # the 16 bytes before the end of the block's scales
            _, a, c, high = words_of(b, self._rows, at(b, self._offset, f.scales - 4))
            low = [bits(a, 0, 15), bits(c, 0, 15), bits(a, 4, 15), bits(c, 4, 15)]
            return [less_32(b.or_(x, bits(high, 2 * j - 4, 48))) for j, x in enumerate(low)]
        if self._kind is GGMLType.IQ4_XS:  # behind d: eight times two high bits, then nibbles
            head, low, _, _ = words_of(b, self._rows, at(b, self._offset, f.scales - 2))

            def spread(x: Value, down: int, moves: tuple[tuple[int, int], ...]) -> Value:
                x = b.lshr(x, splat(i32, n, down))
                for up, mask in moves:
                    x = b.and_(b.or_(x, b.shl(x, splat(i32, n, up))), splat(i32, n, mask))
                return x

            nibbles = (0, 0xFFFF), (8, 0x00FF00FF), (4, 0x0F0F0F0F)
            crumbs = (0, 0xFF), (12, 0x000F000F), (6, 0x03030303)
            return [
                less_32(
                    b.or_(
                        spread(low, 16 * j, nibbles),
                        bits(spread(head, 16 + 8 * j, crumbs), -4, 48),
                    )
                )
                for j in range(2)
            ]
        a, m, c, _ = words_of(b, self._rows, at(b, self._offset, f.scales))
        high, minima = b.or_(bits(c, 0, 15), bits(a, 2, 48)), b.or_(bits(c, 4, 15), bits(m, 2, 48))
        return [bits(a, 0, 63), high, bits(m, 0, 63), minima]

    def _codes(self, b: Value, step: Value) -> list[Value]:
        """The codes of 32 columns, four a word."""
        f, n = FORMATS[self._kind], len(self._rows)
        codes: list[Value] = []
        position = 0
        for plane in f.planes:
            mask = splat(i32, n, ((1 << plane.bits) - 1) * 0x01010101)
            bits = []
            for place, down in plane_places(b, plane, step):
                shift = broadcast(b, b.trunc(down, i32), n)
                words = words_of(b, self._rows, b.add(self._offset, place))
                bits += [b.and_(b.lshr(word, shift), mask) for word in words]
            up = splat(i32, n, position)
            bits = [b.shl(x, up) for x in bits] if position else bits
            codes = [b.or_(x, y) for x, y in zip(codes, bits, strict=True)] if codes else bits
            position += plane.bits
        return codes

    def _lines(self, b: Value, codes: list[Value]) -> list[Value]:
        """Codes of 32 columns, packed."""
        f, n = FORMATS[self._kind], len(self._rows)
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


def plane_places(b: Value, plane: Plane, step: Value) -> list[tuple[Value, Value]]:
    """``Plane.places`` of a step that is known at run time."""

    def const(value: int) -> Value:
        return ir.Constant(i64, value)

    if plane.single:
        place = at(b, b.mul(step, const(STEP)), plane.at)
        return [(place, const(0)), (at(b, place, STEP // 2), const(0))]
    if plane.folded:
        place = at(b, b.mul(step, const(STEP // 2)), plane.at)
        return [(place, const(0)), (place, const(plane.bits))]
    if plane.crossed:
        low = b.and_(b.shl(step, const(1)), const(2))
        high = b.and_(b.lshr(step, const(1)), const(1))
        step = b.or_(b.and_(step, const(4)), b.or_(low, high))
    bit = b.mul(step, const(plane.bits))
    place = at(b, b.mul(b.lshr(bit, const(3)), const(STEP)), plane.at)
    shift = b.and_(bit, const(7))
    return [(place, shift), (at(b, place, STEP // 2), shift)]
