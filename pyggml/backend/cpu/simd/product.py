"""Products of a block of quantized rows and int8 activations, emitted for any tile.

    terms = BlockTerms(b, Q4_1, GroupBlock(Q4_1, address), acts)
    acc = terms.add_to(b, acc, token, part)

A block is 32 columns of some rows, one row a lane, in ``n_parts`` vectors; where its bytes come
from is the block's own affair (``GroupBlock`` here, ``RowsBlock`` in ``plain_rows``). Integer sums
are exact and the rest has one order, so every tile has the same bits.
"""

from __future__ import annotations

from typing import Any

from ....dtype import GGMLType
from ....quants.iq4_nl import VALUES as IQ4_NL_VALUES
from ....quants.mxfp4 import VALUES as MXFP4_VALUES
from .vector import (
    LINE,
    at,
    broadcast,
    f32,
    fma,
    i8,
    i32,
    load,
    splat,
    vec,
    vectors,
)  # fmt: skip

Value = Any
Q4_0, Q4_1, Q8_0 = int(GGMLType.Q4_0), int(GGMLType.Q4_1), int(GGMLType.Q8_0)
Q5_0, Q5_1 = int(GGMLType.Q5_0), int(GGMLType.Q5_1)
IQ4_NL, MXFP4 = int(GGMLType.IQ4_NL), int(GGMLType.MXFP4)
# Bytes in a block of quantized activations
SUM, SCALE, CODES, ROUNDED_SUM = 0, 4, 8, 40
_VALUES = {IQ4_NL: IQ4_NL_VALUES, MXFP4: MXFP4_VALUES}  # that codes stand for


class GroupBlock:
    """A block of 16 interleaved rows, by the parts of a vector each that a line has."""

    def __init__(self, kind: int, address: Value) -> None:
        v = vectors()
        header = LINE if kind in (Q4_1, Q5_1) else LINE // 2  # 16 scales (and minima)
        header, self._bytes = (LINE // 4, True) if kind == MXFP4 else (header, False)
        self.n_parts, self._address, self._fifth_at = v.parts, address, header
        self._codes_at = header + (LINE if kind in (Q5_0, Q5_1) else 0)

    def scale(self, b: Value, p: int) -> Value:
        """<lanes x float>."""
        v = vectors()
        if self._bytes:
            return power_of_two(b, load(b, at(b, self._address, v.lanes * p), vec(i8, v.lanes)))
        return v.load_half(b, at(b, self._address, 2 * v.lanes * p))

    def minimum(self, b: Value, p: int) -> Value:
        """<lanes x float>, of a format that has minima."""
        v = vectors()
        return v.load_half(b, at(b, self._address, LINE // 2 + 2 * v.lanes * p))

    def codes(self, b: Value, line: int, p: int) -> Value:
        """<width x i8>: four bytes of codes of each row."""
        v = vectors()
        place = at(b, self._address, self._codes_at + LINE * line + v.width * p)
        return load(b, place, vec(i8, v.width))

    def fifth_bits(self, b: Value, p: int) -> Value:
        """<lanes x i32>: bit j of byte i is that of column 4j + i."""
        v = vectors()
        return load(b, at(b, self._address, self._fifth_at + v.width * p), vec(i32, v.lanes))


class BlockTerms:
    """A block of 32 columns times tokens."""

    def __init__(self, b: Value, kind: int, block: Any, acts: list[Value]) -> None:
        parts = range(block.n_parts)
        sums = _byte_sums if kind == Q8_0 or kind in _VALUES else _nibble_sums
        self._totals = sums(b, kind, block, acts)
        self._scales = [block.scale(b, p) for p in parts]
        self._offsets: list[Value] = []
        self._sum_at = ROUNDED_SUM if kind in (Q4_1, Q5_1) else SUM
        if kind in (Q4_1, Q5_1):
            self._offsets = [block.minimum(b, p) for p in parts]
        elif kind in (Q4_0, Q5_0):
            zero_code = splat(f32, vectors().lanes, -8.0 if kind == Q4_0 else -16.0)
            self._offsets = [b.fmul(s, zero_code) for s in self._scales]
        self._acts = acts
        self._heads: dict[int, tuple[Value, Value]] = {}

    def add_to(self, b: Value, acc: Value, t: int, p: int) -> Value:
        """The sum of the rows of a part with a token, with the block added."""
        if t not in self._heads:
            words = (load(b, at(b, self._acts[t], offset), f32) for offset in (SCALE, self._sum_at))
            d, s = (broadcast(b, word, vectors().lanes) for word in words)
            self._heads[t] = d, s
        d, s = self._heads[t]
        product = b.sitofp(self._totals[t][p], acc.type)
        acc = fma(b, b.fmul(self._scales[p], d), product, acc)
        return fma(b, self._offsets[p], s, acc) if self._offsets else acc


def power_of_two(b: Value, e: Value) -> Value:
    """MXFP4's scales, ``2^(e - 128)``, of exponents <lanes x i8>."""
    n = e.type.count
    e = b.zext(e, vec(i32, n))
    small = b.shl(splat(i32, n, 0x00200000), b.and_(e, splat(i32, n, 1)))  # no normal numbers
    bits = b.shl(b.sub(e, splat(i32, n, 1)), splat(i32, n, 23))
    bits = b.select(b.icmp_unsigned("<", e, splat(i32, n, 2)), small, bits)
    return b.bitcast(bits, vec(f32, n))


def _byte_sums(b: Value, kind: int, block: Any, acts: list[Value]) -> list[list[Value]]:
    """Products of int8 values and int8 over a block, as integers [token][part].

    The values are Q8_0's codes, or what codes of 4 bits stand for.
    """
    v, parts = vectors(), range(block.n_parts)
    small = kind == MXFP4
    sums = [[v.u4_zero() if small else v.s8_zero()] * block.n_parts for _ in acts]
    for line in range(4 if kind in _VALUES else 8):
        weights = [_values(b, kind, block.codes(b, line, p)) for p in parts]
        for k, half in enumerate((0, 16)[: len(weights[0])]):
            ready = [v.s8_prepare(b, weights[p][k]) for p in parts]
            for t, act in enumerate(acts):
                a = v.broadcast_bytes(b, at(b, act, CODES + half + 4 * line))
                for p in parts:
                    add = v.s5_add if small else v.s8_add
                    sums[t][p] = add(b, sums[t][p], ready[p], a)
    return [[v.u4_total(b, x) for x in row] for row in sums] if small else sums


def _values(b: Value, kind: int, codes: Value) -> list[Value]:
    """The int8 values of a line, one or two slices of columns."""
    if kind not in _VALUES:
        return [codes]
    v = vectors()
    mask, four = splat(i8, v.width, 15), splat(i8, v.width, 4)
    return [v.look_up(b, _VALUES[kind], x) for x in (b.and_(codes, mask), b.lshr(codes, four))]


def _nibble_sums(b: Value, kind: int, block: Any, acts: list[Value]) -> list[list[Value]]:
    """Products of codes of 4 or 5 bits and int8 over a block, as integers [token][part]."""
    v, n_tokens, parts = vectors(), len(acts), range(block.n_parts)
    five_bits = kind in (Q5_0, Q5_1)
    lines = v.u5_lines if five_bits else 4  # whose products fit a sum

    def nibbles(line: int, p: int) -> tuple[Value, Value]:
        q = block.codes(b, line, p)
        low = b.and_(q, splat(i8, v.width, 15))
        high = b.lshr(q, splat(i8, v.width, 4))
        if five_bits:
            fifth = block.fifth_bits(b, p)
            low = b.or_(low, _fifth(b, fifth, line))
            high = b.or_(high, _fifth(b, fifth, 4 + line))
        return low, high

    totals: list[list[Value]] = []
    for first in range(0, 4, lines):
        sums = [[v.u4_zero()] * block.n_parts for _ in acts]
        for line in range(first, first + lines):
            codes_of = [nibbles(line, p) for p in parts]
            for t in range(n_tokens):
                places = (at(b, acts[t], CODES + half + 4 * line) for half in (0, 16))
                acts_of = [v.broadcast_bytes(b, place) for place in places]
                for p in parts:
                    for n, a in zip(codes_of[p], acts_of, strict=True):
                        sums[t][p] = v.u4_add(b, sums[t][p], n, a)
        part = [[v.u4_total(b, x) for x in row] for row in sums]
        totals = [
            [b.add(x, y) for x, y in zip(*rows, strict=True)]
            for rows in zip(totals, part, strict=True)
        ] if totals else part  # fmt: skip
    return totals


def _fifth(b: Value, bits: Value, k: int) -> Value:
    """Bit ``k`` of every byte, moved to bit 4."""
    n = bits.type.count
    shift = splat(i32, n, abs(4 - k))
    moved = b.shl(bits, shift) if k < 4 else b.lshr(bits, shift)
    return b.bitcast(b.and_(moved, splat(i32, n, 0x10101010)), vec(i8, 4 * n))
