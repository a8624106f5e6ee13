"""TQ1_0's digits of base 3: see ``quants/tq1_0``.

codes = digits_of(b, rows, offset)                 # 64 <lanes x i32>: codes 0, 1, 2 of 256 columns
"""

from __future__ import annotations

from typing import Any

from ....quants.tq1_0 import PARTS
from .transpose import elements_of, words_of
from .vector import at, i16, i32, splat, vec

Value = Any


def digits_of(b: Value, rows: list[Value], offset: Value) -> list[Value]:
    """The codes of a block of each row, four columns a word."""
    codes = []
    for first, n_bytes, digits in PARTS:
        words = []
        for at_bytes in range(first, first + n_bytes, 16):
            place = at(b, offset, at_bytes)
            words += (
                words_of(b, rows, place) if n_bytes >= 16 else [elements_of(b, rows, place, i32)]
            )
        columns = [_digits(b, word, digits) for word in words]
        codes += [column[k] for k in range(digits) for column in columns]
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
