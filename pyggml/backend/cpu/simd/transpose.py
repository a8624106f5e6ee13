"""Transposes in registers: elements of several rows become the lanes of vectors.

    w0, w1, w2, w3 = words_of(b, rows, offset)     # <lanes x i32>: a word of each row

``rows`` are addresses, ``offset`` is added to each; 16 bytes of every row are loaded.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ..weights.layout import ROWS
from .isa import vectors
from .vector import concat, i16, i32, lanes_of, like, load, vec

Value = Any


def _unpack(b: Value, x: Value, y: Value, width: int, first: int) -> Value:
    """Interleave halves of x and y (from half word ``first`` of 8) in every 128 bits.

    ``width``: half words that stay together.
    """
    x8, y8 = (b.bitcast(v, vec(i16, v.type.count * v.type.element.width // 16)) for v in (x, y))
    n = x8.type.count
    mask = []
    for lane in range(0, n, 8):
        for k in range(first, first + 4, width):
            for source in (lane, n + lane):
                mask += [source + k + w for w in range(width)]
    return b.bitcast(lanes_of(b, x8, y8, mask), x.type)


def words_of(b: Value, rows: list[Value], offset: Value) -> list[Value]:
    """The four words at ``offset`` of each row, <lanes x i32>: a transpose of 4 by 4 words."""
    q = [
        concat(b, [load(b, b.add(row, offset), vec(i32, 4)) for row in rows[k::4]])
        for k in range(4)
    ]
    x = [_unpack(b, q[r], q[r + 1], 2, h) for r in (0, 2) for h in (0, 4)]
    return [_unpack(b, x[r], x[r + 2], 4, h) for r in (0, 1) for h in (0, 4)]


def elements_of(b: Value, rows: list[Value], offset: Value, element: ir.Type) -> Value:
    """One element at ``offset`` of each row."""
    y = ir.Constant(vec(element, len(rows)), ir.Undefined)
    for r, row in enumerate(rows):
        y = b.insert_element(y, load(b, b.add(row, offset), element), ir.Constant(i32, r))
    return y


# A transpose of 8 times 4 bits of each word, as 4 times 4 bits of each half: corners of 2 by 2
# swap, then of 1 by 1; then nibble i goes to byte i, nibbles of the first half to the low ones.
_SWAPS = ((6, 0x00CC00CC), (3, 0x0A0A0A0A), (8, 0x0000FF00), (4, 0x00F000F0))


def spread_bits(b: Value, x: Value) -> Value:
    """Of every word: bit 4j+i becomes bit 8i+j."""
    return _swapped(b, x, _SWAPS)


def gather_bits(b: Value, x: Value) -> Value:
    """The inverse of ``spread_bits``."""
    return _swapped(b, x, _SWAPS[::-1])


def _swapped(b: Value, x: Value, swaps: tuple[tuple[int, int], ...]) -> Value:
    """Swap the bits of a mask with the bits ``by`` places higher, for each (by, mask)."""
    for by, mask in swaps:
        y = b.and_(b.xor(x, b.lshr(x, like(x, by))), like(x, mask))
        x = b.xor(b.xor(x, y), b.shl(y, like(x, by)))
    return x


def columns_of(b: Value, size: int, rows: list[Value], offset: Value) -> list[Value]:
    """The columns in 16 bytes of each of 16 rows, as the bits of 16 elements."""
    if size == 4:
        lanes = vectors().lanes
        parts = [words_of(b, rows[r : r + lanes], offset) for r in range(0, ROWS, lanes)]
        return [concat(b, list(columns)) for columns in zip(*parts, strict=True)]
    # Rows r and r + 8 share a vector of two halves; 8 by 8 elements of both are transposed.
    x = [
        concat(b, [load(b, b.add(row, offset), vec(i16, 8)) for row in (rows[r], rows[r + 8])])
        for r in range(8)
    ]
    for width in (1, 2, 4):
        x = x[::2] + x[1::2] if width > 1 else x
        x = [_unpack(b, x[r], x[r + 1], width, h) for r in range(0, 8, 2) for h in (0, 4)]
    return [x[c] for c in (0, 1, 4, 5, 2, 3, 6, 7)]
