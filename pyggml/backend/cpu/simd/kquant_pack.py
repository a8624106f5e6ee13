"""Blocks of 256 columns in plain rows, packed with a row in each lane.

    RowsKBlock(b, kind, rows, offset).pack(b, target, part)

Access: as in ``plain_rows``, but a block's bytes in the order of steps of 32 columns.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from llvmlite import ir

from ....quants.block import Bits, Field, count, places
from ....quants.ternary import Digits
from ..layout import COLUMNS, LINE, ROWS, STEP, STEPS, layout_k, pieces
from .loop import counted_loop
from .transpose import elements_of, words_of
from .vector import at, broadcast, i8, i16, i32, i64, splat, store, vec, vectors

Value = Any
_LOADED = 16  # bytes of a row that are loaded at once


class RowsKBlock:
    """A block of ``lanes`` plain rows (or its parts); ``offset`` is its place in the rows."""

    def __init__(self, b: Value, kind: int, rows: list[Value], offset: Value) -> None:
        self._layout, self._rows, self._offset = layout_k(kind), rows, offset

    def pack(self, b: Value, target: Value, p: int) -> None:
        """Store it as part ``p`` of the interleaved block at ``target``."""
        f, v = self._layout, vectors()
        source = f.source
        for j, field in enumerate(filter(None, (source.d, source.low))):
            bits = elements_of(b, self._rows, at(b, self._offset, field[0].at // 8), i16)
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

        if isinstance(source.codes, Digits):
            codes = _digits_of(b, source.codes, self._rows, self._offset)
            for i in range(STEPS):
                put(at(b, lines, LINE * f.bits * i), codes[8 * i : 8 * (i + 1)])
        else:
            counted_loop(b, ir.Constant(i64, STEPS), [], step)

    def _sub_scales(self, b: Value) -> list[Value]:
        """The sub-scales of four sub-blocks in a word, then the sub-minima."""
        layout, f = self._layout, self._layout.source
        if layout.is_shared:  # bytes as they lie
            return self._words(b, (f.steps[0]._replace(width=8),))
        steps = self._words(b, f.steps) if f.steps else []
        if f.step_zero:
            n = 4 * len(self._rows)
            zero = splat(i8, n, f.step_zero)
            steps = [b.bitcast(b.sub(b.bitcast(x, vec(i8, n)), zero), x.type) for x in steps]
        return steps + (self._words(b, f.minima) if f.minima else [])

    def _words(self, b: Value, field: Field) -> list[Value]:
        """A field's values, a byte each, four in a word of each row."""
        n, f = len(self._rows), self._layout.source
        first = min(bits.at for bits in f.steps + f.minima) // 8
        start = min(first, self._layout.source_bytes - _LOADED)
        start -= (start - first) % 4  # words of the field are words of what is loaded
        loaded = words_of(b, self._rows, at(b, self._offset, start))  # LLVM keeps one of equals

        def moved(word: Value, up: int, mask: int) -> Value:
            x = word
            if up:
                x = (b.shl if up > 0 else b.lshr)(x, splat(i32, n, abs(up)))
            return x if mask == 0xFFFFFFFF else b.and_(x, splat(i32, n, mask))

        words = []
        for w in range(count(field) // 4):
            parts = []
            for bits in field:
                if 4 * w not in bits.elements:
                    continue
                which = range(4 * w - bits.first, 4 * w - bits.first + 4)
                where = [int(places(bits)[i]) - 8 * start for i in which]
                mask = (1 << bits.width) - 1 << bits.shift
                if where == [where[0] + 8 * k for k in range(4)] and where[0] // 8 % 4 == 0:
                    up = bits.shift - where[0] % 8
                    parts.append(moved(loaded[where[0] // 32], up, mask * 0x01010101))
                else:
                    parts += [
                        moved(loaded[p // 32], 8 * k + bits.shift - p % 32, mask << 8 * k)
                        for k, p in enumerate(where)
                    ]
            words.append(reduce(b.or_, parts))
        return words

    def _codes(self, b: Value, step: Value) -> list[Value]:
        """The codes of 32 columns, four a word."""
        n = len(self._rows)
        codes: list[Value] = []
        for plane in self._layout.source.planes:
            mask = splat(i32, n, ((1 << plane.width) - 1) * 0x01010101)
            bits = []
            for place, down in _places_at(b, plane, step):
                shift = broadcast(b, b.trunc(down, i32), n)
                words = words_of(b, self._rows, b.add(self._offset, place))
                bits += [b.and_(b.lshr(word, shift), mask) for word in words]
            up = splat(i32, n, plane.shift)
            bits = [b.shl(x, up) for x in bits] if plane.shift else bits
            codes = [b.or_(x, y) for x, y in zip(codes, bits, strict=True)] if codes else bits
        return codes

    def _lines(self, b: Value, codes: list[Value]) -> list[Value]:
        """Codes of 32 columns, packed."""
        f, n = self._layout, len(self._rows)
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


def _places_at(b: Value, bits: Bits, step: Value) -> list[tuple[Value, Value]]:
    """Byte and shift of a plane's bits, of the first and the last 16 columns of a step.

    The 16 columns are in bytes one after the other, at one shift: so an axis of a plane is split
    into steps, halves of a step and columns of a half.
    """

    def const(value: int) -> Value:
        return ir.Constant(i64, value)

    byte, shift, half = const(bits.at // 8), const(0), 0
    inner = COLUMNS  # columns inside an axis' step
    for n, stride in zip(bits.shape, bits.strides, strict=True):
        inner //= n
        n_steps = max(1, n * inner // STEP) // max(1, inner // STEP)  # digits that choose a step
        if n_steps > 1:
            digit = b.lshr(step, const(max(1, inner // STEP).bit_length() - 1))
            digit = b.and_(digit, const(n_steps - 1))
            moved = stride * (n // n_steps)  # bits from one to the next
            if moved % 8:
                shift = b.add(shift, b.mul(digit, const(moved)))
            else:
                byte = b.add(byte, b.mul(digit, const(moved // 8)))
        if inner < STEP and n * inner >= STEP // 2 and inner <= STEP // 2:
            half = half or stride * (STEP // 2 // inner)
    if half % 8:
        return [(byte, shift), (byte, b.add(shift, const(half)))]
    return [(byte, shift), (b.add(byte, const(half // 8)), shift)]


def _digits_of(b: Value, digits: Digits, rows: list[Value], offset: Value) -> list[Value]:
    """Codes 0, 1 and 2 of a block of each row, four columns a word."""
    codes = []
    for first, n_bytes, n_digits in digits.parts:
        words = []
        for at_bytes in range(first, first + n_bytes, 16):
            place = at(b, offset, at_bytes)
            words += (
                words_of(b, rows, place) if n_bytes >= 16 else [elements_of(b, rows, place, i32)]
            )
        columns = [_digits(b, word, n_digits) for word in words]
        codes += [column[k] for k in range(n_digits) for column in columns]
    return codes


def _digits(b: Value, words: Value, n: int) -> list[Value]:
    """The first ``n`` digits of each byte: the carries of repeated multiplications by 3."""
    count = 2 * words.type.count

    def const(value: int) -> Value:
        return splat(i16, count, value)

    halves = b.bitcast(words, vec(i16, count))
    rests = [b.and_(halves, const(255)), b.lshr(halves, const(8))]
    found = []
    for _ in range(n):
        low, high = (b.mul(x, const(3)) for x in rests)
        digits = b.or_(b.lshr(low, const(8)), b.and_(high, const(0xFF00)))
        found.append(b.bitcast(digits, words.type))
        rests = [b.and_(x, const(255)) for x in (low, high)]
    return found
