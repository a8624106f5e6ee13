"""Products of a block of quantized rows and int8 activations, emitted for any tile.

    dot = BlockDot(b, GroupBlock(Q4_1, address), acts)
    acc = dot.accumulate(b, acc, token, part)

A block is 32 columns of some rows, one row a lane, in ``n_parts`` vectors; the block itself says
where its bytes come from (``GroupBlock`` here, ``RowsBlock`` in ``plain_rows``), its layout what
they are. Integer sums are exact and the rest has one order, so every tile has the same bits.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from ....quants.block import Bits
from ..layout import LINE, ROWS, layout_32
from .vector import at, broadcast, f32, fma, i8, i32, load, splat, vec, vectors

Value = Any
# Bytes in a block of quantized activations
EIGHT_OFF, SCALE, CODES, SUM = 0, 4, 8, 40


class GroupBlock:
    """A block of 16 interleaved rows, by the parts of a vector each that a line has."""

    def __init__(self, kind: int, address: Value) -> None:
        self.layout = layout_32(kind)
        self.n_parts, self._address = vectors().parts, address
        self._minima_at = ROWS * self.layout.scale_bytes

    def scale(self, b: Value, p: int) -> Value:
        """<lanes x float>."""
        v = vectors()
        if self.layout.scale_bytes == 1:
            return power_of_two(b, load(b, at(b, self._address, v.lanes * p), vec(i8, v.lanes)))
        return v.load_half(b, at(b, self._address, 2 * v.lanes * p))

    def minimum(self, b: Value, p: int) -> Value:
        """<lanes x float>, of a format that has minima."""
        v = vectors()
        return v.load_half(b, at(b, self._address, self._minima_at + 2 * v.lanes * p))

    def codes(self, b: Value, line: int, p: int) -> Value:
        """<width x i8>: four bytes of the low bits of codes of each row."""
        v = vectors()
        place = self.layout.plane_at(self.layout.main) + LINE * line + v.width * p
        return load(b, at(b, self._address, place), vec(i8, v.width))

    def high_bits(self, b: Value, plane: Bits, line: int, p: int) -> Value:
        """<lanes x i32>: four bytes of another plane."""
        v = vectors()
        place = self.layout.plane_at(plane) + LINE * line + v.width * p
        return load(b, at(b, self._address, place), vec(i32, v.lanes))


class BlockDot:
    """A block of 32 columns times tokens."""

    def __init__(self, b: Value, block: Any, acts: list[Value]) -> None:
        self._block, self._acts = block, acts
        self._parts: dict[int, tuple[list[Value], Value, Value]] = {}
        self._heads: dict[tuple[int, int], Value] = {}

    def accumulate(self, b: Value, acc: Value, t: int, p: int) -> Value:
        """The sum of the rows of a part with a token, with the block added."""
        if p not in self._parts:
            self._multiply(b, p)
        totals, scale, minimum = self._parts[p]
        product = b.sitofp(totals[t], acc.type)
        acc = fma(b, b.fmul(scale, self._head(b, t, SCALE)), product, acc)
        return fma(b, minimum, self._head(b, t, SUM), acc) if minimum is not None else acc

    def _multiply(self, b: Value, p: int) -> None:
        """The integer sums, [token], of a part and of those that are multiplied with it."""
        block, f = self._block, self._block.layout.f
        v = vectors()
        groups = v.part_groups(len(self._acts), block.n_parts, v.block_sums)
        parts = next(group for group in groups if p in group)
        is_signed = f.signed or f.values
        sums = _signed_sums if is_signed and not v.raised else _unsigned_sums
        for part, *totals in zip(parts, *sums(b, block, self._acts, parts), strict=True):
            minimum = block.minimum(b, part) if f.low else None
            self._parts[part] = totals, block.scale(b, part), minimum

    def _head(self, b: Value, t: int, offset: int) -> Value:
        """A float of a token's block."""
        if (t, offset) not in self._heads:
            word = load(b, at(b, self._acts[t], offset), f32)
            self._heads[t, offset] = broadcast(b, word, vectors().lanes)
        return self._heads[t, offset]


def power_of_two(b: Value, e: Value) -> Value:
    """Scales ``2^(e - 128)`` of exponents <lanes x i8>."""
    n = e.type.count
    e = b.zext(e, vec(i32, n))
    small = b.shl(splat(i32, n, 0x00200000), b.and_(e, splat(i32, n, 1)))  # no normal numbers
    bits = b.shl(b.sub(e, splat(i32, n, 1)), splat(i32, n, 23))
    bits = b.select(b.icmp_unsigned("<", e, splat(i32, n, 2)), small, bits)
    return b.bitcast(bits, vec(f32, n))


def _signed_sums(b: Value, block: Any, acts: list[Value], parts: range) -> list[list[Value]]:
    """Products of int8 values and int8 over a block, as integers [token][part].

    The values are codes of 8 bits, or what codes of up to 4 bits stand for.
    """
    v, values = vectors(), block.layout.f.values
    small = bool(values) and max(map(abs, values)) < 16  # products of 32 columns fit 16 bits
    sums = [[v.u4_zero() if small else v.s8_zero()] * len(parts) for _ in acts]
    for line, halves in _lines(block):
        weights = [_slices(b, block, line, p) for p in parts]
        for k, half in enumerate(halves):
            ready = [v.s8_prepare(b, w[k]) for w in weights]
            for row, act in zip(sums, acts, strict=True):
                a = v.broadcast_bytes(b, at(b, act, CODES + half + 4 * line))
                for p, w in enumerate(ready):
                    row[p] = (v.s5_add if small else v.s8_add)(b, row[p], w, a)
    return [[v.u4_total(b, x) for x in row] for row in sums] if small else sums


def _unsigned_sums(b: Value, block: Any, acts: list[Value], parts: range) -> list[list[Value]]:
    """The same of unsigned codes: their zero, or what values are raised by, is taken off."""
    v, f = vectors(), block.layout.f
    zero = v.raised if f.signed or f.values else f.zero
    lines = _lines(block)
    fitting = len(lines)  # whose products fit a sum
    if f.bits == 5:
        fitting = min(fitting, 2 * v.u5_lines // len(lines[0][1]))
    groups = []
    for first in range(0, len(lines), fitting):
        sums = [[v.u4_zero() if v.narrow else _start(b, act, zero)] * len(parts) for act in acts]
        for line, halves in lines[first : first + fitting]:
            codes = [_slices(b, block, line, p) for p in parts]
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
    """The initial value of the sums over a block, ``-zero * sum(activations)``, <lanes x i32>."""
    lanes = vectors().lanes
    if not zero:
        return splat(i32, lanes, 0)
    eight = broadcast(b, load(b, at(b, act, EIGHT_OFF), i32), lanes)
    if zero < 8:  # a power of two; what is shifted out is 0
        return b.ashr(eight, splat(i32, lanes, (8 // zero).bit_length() - 1))
    return b.shl(eight, splat(i32, lanes, (zero // 8).bit_length() - 1)) if zero > 8 else eight


def _lines(block: Any) -> list[tuple[int, tuple[int, ...]]]:
    """The lines of a block's low bits, and the columns that the slices of each begin at."""
    w = block.layout.main.width
    return [(k, tuple(range(0, 32, 4 * w))) for k in range(w)]


def _slices(b: Value, block: Any, line: int, p: int) -> list[Value]:
    """The bytes of a line that are multiplied, a slice of columns each."""
    v, q, f = vectors(), block.codes(b, line, p), block.layout.f
    w = block.layout.main.width
    if w == 8:
        return [b.xor(q, splat(i8, v.width, v.raised)) if v.raised else q]
    slices, numbers = [], range(line, 8, w)
    for down in range(0, 8, w):
        x = b.lshr(q, splat(i8, v.width, down)) if down else q
        slices.append(b.and_(x, splat(i8, v.width, (1 << w) - 1)) if down + w < 8 else x)
    for plane in block.layout.planes:
        if plane.shift:
            words = {k: block.high_bits(b, plane, k, p) for k in {n % plane.width for n in numbers}}
            slices = [
                b.or_(x, _moved(b, words[n % plane.width], plane, n))
                for x, n in zip(slices, numbers, strict=True)
            ]
    if f.values:
        values = tuple(x + v.raised for x in block.layout.values)
        return [v.look_up(b, values, x) for x in slices]
    return slices


def signed_codes(b: Value, block: Any) -> list[Value]:
    """A block's 32 columns as the int8 that codes stand for, 8 lines of 4 columns of 16 rows."""
    by_line = [_slices(b, block, line, 0) for line, _ in _lines(block)]
    lines = [slices[k] for k in range(len(by_line[0])) for slices in by_line]
    f = block.layout.f
    if f.signed or f.values:
        raised = splat(i8, LINE, vectors().raised)
        return [b.sub(x, raised) for x in lines]
    return [b.sub(x, splat(i8, LINE, f.zero)) for x in lines] if f.zero else lines


def _moved(b: Value, bits: Value, plane: Bits, k: int) -> Value:
    """A plane's bits of slice ``k``, in its line, where they are in a code."""
    w = plane.width
    n, down = bits.type.count, w * (k // w)
    shift = splat(i32, n, abs(plane.shift - down))
    moved = b.shl(bits, shift) if down < plane.shift else b.lshr(bits, shift)
    mask = ((1 << w) - 1 << plane.shift) * 0x01010101
    return b.bitcast(b.and_(moved, splat(i32, n, mask)), vec(i8, 4 * n))
