"""Products of a block of quantized rows and int8 activations, emitted for any tile.

    terms = BlockTerms(b, Q4_1, GroupBlock(Q4_1, address), acts)
    acc = terms.add_to(b, acc, token, part)

A block is 32 columns of some rows, one row a lane, in ``n_parts`` vectors; where its bytes come
from is the block's own affair (``GroupBlock`` here, ``RowsBlock`` in ``plain_rows``). Integer sums
are exact and the rest has one order, so every tile has the same bits.
"""

from __future__ import annotations

from functools import reduce
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
EIGHT_OFF, SCALE, CODES, SUM = 0, 4, 8, 40
_ZEROS = {Q4_0: 8, Q5_0: 16, Q4_1: 0, Q5_1: 0}  # codes that stand for 0
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
        self._kind, self._block, self._acts = kind, block, acts
        self._parts: dict[int, tuple[list[Value], Value, Value]] = {}
        self._heads: dict[tuple[int, int], Value] = {}

    def add_to(self, b: Value, acc: Value, t: int, p: int) -> Value:
        """The sum of the rows of a part with a token, with the block added."""
        if p not in self._parts:
            self._multiply(b, p)
        totals, scale, minimum = self._parts[p]
        product = b.sitofp(totals[t], acc.type)
        acc = fma(b, b.fmul(scale, self._head(b, t, SCALE)), product, acc)
        return fma(b, minimum, self._head(b, t, SUM), acc) if minimum is not None else acc

    def _multiply(self, b: Value, p: int) -> None:
        """The integer sums, [token], of a part and of those that are multiplied with it."""
        kind, block = self._kind, self._block
        v = vectors()
        groups = v.part_groups(len(self._acts), block.n_parts, v.block_sums)
        parts = next(group for group in groups if p in group)
        values = kind == Q8_0 or kind in _VALUES
        sums = _signed_sums if values and not v.raised else _unsigned_sums
        for part, *totals in zip(parts, *sums(b, kind, block, self._acts, parts), strict=True):
            minimum = block.minimum(b, part) if kind in (Q4_1, Q5_1) else None
            self._parts[part] = totals, block.scale(b, part), minimum

    def _head(self, b: Value, t: int, offset: int) -> Value:
        """A float of a token's block."""
        if (t, offset) not in self._heads:
            word = load(b, at(b, self._acts[t], offset), f32)
            self._heads[t, offset] = broadcast(b, word, vectors().lanes)
        return self._heads[t, offset]


def power_of_two(b: Value, e: Value) -> Value:
    """MXFP4's scales, ``2^(e - 128)``, of exponents <lanes x i8>."""
    n = e.type.count
    e = b.zext(e, vec(i32, n))
    small = b.shl(splat(i32, n, 0x00200000), b.and_(e, splat(i32, n, 1)))  # no normal numbers
    bits = b.shl(b.sub(e, splat(i32, n, 1)), splat(i32, n, 23))
    bits = b.select(b.icmp_unsigned("<", e, splat(i32, n, 2)), small, bits)
    return b.bitcast(bits, vec(f32, n))


def _signed_sums(
    b: Value, kind: int, block: Any, acts: list[Value], parts: range
) -> list[list[Value]]:
    """Products of int8 values and int8 over a block, as integers [token][part].

    The values are Q8_0's codes, or what codes of 4 bits stand for.
    """
    v, small = vectors(), kind == MXFP4
    sums = [[v.u4_zero() if small else v.s8_zero()] * len(parts) for _ in acts]
    for line, halves in _lines(kind):
        weights = [_slices(b, kind, block, line, p) for p in parts]
        for k, half in enumerate(halves):
            ready = [v.s8_prepare(b, w[k]) for w in weights]
            for row, act in zip(sums, acts, strict=True):
                a = v.broadcast_bytes(b, at(b, act, CODES + half + 4 * line))
                for p, w in enumerate(ready):
                    row[p] = (v.s5_add if small else v.s8_add)(b, row[p], w, a)
    return [[v.u4_total(b, x) for x in row] for row in sums] if small else sums


def _unsigned_sums(
    b: Value, kind: int, block: Any, acts: list[Value], parts: range
) -> list[list[Value]]:
    """The same of unsigned codes: their zero, or what values are raised by, is taken off."""
    v = vectors()
    zero = _ZEROS.get(kind, v.raised)
    lines = _lines(kind)
    fitting = v.u5_lines if kind in (Q5_0, Q5_1) else len(lines)  # whose products fit a sum
    groups = []
    for first in range(0, len(lines), fitting):
        sums = [[v.u4_zero() if v.narrow else _start(b, act, zero)] * len(parts) for act in acts]
        for line, halves in lines[first : first + fitting]:
            codes = [_slices(b, kind, block, line, p) for p in parts]
            for row, act in zip(sums, acts, strict=True):
                places = (at(b, act, CODES + half + 4 * line) for half in halves)
                acts_of = [v.broadcast_bytes(b, place) for place in places]
                for p, slices in enumerate(codes):
                    for n, a in zip(slices, acts_of, strict=True):
                        row[p] = v.u4_add(b, row[p], n, a)
        groups.append(sums)
    if v.narrow:  # groups of 16 bits
        groups = [[[v.u4_total(b, x) for x in row] for row in sums] for sums in groups]
        groups.append([[_start(b, act, zero)] * len(parts) for act in acts])
    return [
        [reduce(b.add, xs) for xs in zip(*rows, strict=True)] for rows in zip(*groups, strict=True)
    ]


def _start(b: Value, act: Value, zero: int) -> Value:
    """What is taken off the products of a block, <lanes x i32>."""
    lanes = vectors().lanes
    if not zero:
        return splat(i32, lanes, 0)
    eight = broadcast(b, load(b, at(b, act, EIGHT_OFF), i32), lanes)
    return b.shl(eight, splat(i32, lanes, (zero // 8).bit_length() - 1)) if zero > 8 else eight


def _lines(kind: int) -> list[tuple[int, tuple[int, ...]]]:
    """The lines of a block, and the columns that the slices of each begin at."""
    return [(j, (0,)) for j in range(8)] if kind == Q8_0 else [(j, (0, 16)) for j in range(4)]


def _slices(b: Value, kind: int, block: Any, line: int, p: int) -> list[Value]:
    """The bytes of a line that are multiplied, one or two slices of columns."""
    v, q = vectors(), block.codes(b, line, p)
    if kind == Q8_0:
        return [b.xor(q, splat(i8, v.width, v.raised)) if v.raised else q]
    slices = [b.and_(q, splat(i8, v.width, 15)), b.lshr(q, splat(i8, v.width, 4))]
    if kind in _VALUES:
        values = tuple(x + v.raised for x in _VALUES[kind])
        return [v.look_up(b, values, x) for x in slices]
    if kind in (Q5_0, Q5_1):
        fifth = block.fifth_bits(b, p)
        return [
            b.or_(x, _fifth(b, fifth, k)) for x, k in zip(slices, (line, 4 + line), strict=True)
        ]
    return slices


def signed_codes(b: Value, kind: int, block: Any) -> list[Value]:
    """A block's 32 columns as the int8 that codes stand for, 8 lines of 4 columns of 16 rows."""
    by_line = [_slices(b, kind, block, line, 0) for line, _ in _lines(kind)]
    lines = [slices[k] for k in range(len(by_line[0])) for slices in by_line]
    if kind == Q8_0 or kind in _VALUES:
        raised = splat(i8, LINE, vectors().raised)
        return [b.sub(x, raised) for x in lines]
    zero = _ZEROS.get(kind, 0)
    return [b.sub(x, splat(i8, LINE, zero)) for x in lines] if zero else lines


def _fifth(b: Value, bits: Value, k: int) -> Value:
    """Bit ``k`` of every byte, moved to bit 4."""
    n = bits.type.count
    shift = splat(i32, n, abs(4 - k))
    moved = b.shl(bits, shift) if k < 4 else b.lshr(bits, shift)
    return b.bitcast(b.and_(moved, splat(i32, n, 0x10101010)), vec(i8, 4 * n))
