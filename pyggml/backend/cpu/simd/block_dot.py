"""Products of a block of quantized rows and int8 activations, emitted for any tile.

    dot = BlockDot(b, GroupBlock(Q4_1, address), acts)          # blocks of 32 columns
    dot = KDot(b, GroupKBlock(Q4_K, address), acts, prefetch_step)  # of 256 columns
    acc = dot.accumulate(b, acc, token, part)

A block of 32 columns is some rows, a row in each lane, in ``n_parts`` vectors. ``GroupBlock`` and
``RowsBlock`` (in ``plain_rows``) load its bytes, and its layout says what they mean. Integer sums
are exact and float operations have one order, so every tile has the same bits.

Of blocks of 256 columns, the integer sums over sub-blocks, times their sub-scales, are added over
the block, exactly. Then one multiply-add for the block (and one for the minima) goes to the row's
float32 sum. If the zero of codes is not 0, or an offset makes values unsigned for ``vpdpbusd``, a
block's sum starts at ``-zero * sum(sub-scale * activations)``; in sets with ``load_u4_start``, each
sub-block's sum starts at ``-zero * sum(activations)``. Access: the block's lines front to back, in
a loop over steps of 32 columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from itertools import product
from typing import Any

from llvmlite import ir

from ....quants.block import Bits
from ..weights.layout import COLUMNS, LINE, ROWS, STEP, STEPS, layout_32, layout_k, pieces
from .isa import fma, load_floats, vectors
from .vector import (
    F16,
    Generic,
    at,
    broadcast,
    broadcast_f32,
    call,
    const,
    counted_loop,
    f32,
    i8,
    i16,
    i32,
    item_at,
    like,
    load,
    pointer,
    shifted,
    splat,
    stack_memory,
    store,
    times,
    vec,
)

Value = Any
# Bytes in a block of quantized activations: of 32 columns, of 256
EIGHT_OFF, SCALE, CODES_32, SUM = 0, 4, 8, 40
SUMS_32, SUMS_16, STARTS, CODES_256 = 16, 32, 64, 128


class GroupBlock:
    """A block of 16 interleaved rows; part p of a line is one vector."""

    n_lines: int | None = None  # how many lines are multiplied; None: all

    def __init__(self, kind: int, address: Value) -> None:
        self.layout = layout_32(kind)
        self.n_parts, self._address = vectors().parts, address
        self._minima_at = ROWS * self.layout.scale_bytes

    def scale(self, b: Value, p: int) -> Value:
        """The scales, <lanes x float>."""
        v = vectors()
        if self.layout.scale_bytes == 1:
            return power_of_two(b, load(b, at(b, self._address, v.lanes * p), vec(i8, v.lanes)))
        return load_floats(b, F16, at(b, self._address, 2 * v.lanes * p), v.lanes)

    def minimum(self, b: Value, p: int) -> Value:
        """The minima, <lanes x float>, of a format that has some."""
        v = vectors()
        place = at(b, self._address, self._minima_at + 2 * v.lanes * p)
        return load_floats(b, F16, place, v.lanes)

    def codes(self, b: Value, line: int, p: int) -> Value:
        """The low bits of codes: four bytes of each row, <width x i8>."""
        v = vectors()
        place = self.layout.plane_at(self.layout.main) + LINE * line + v.width * p
        return load(b, at(b, self._address, place), vec(i8, v.width))

    def high_bits(self, b: Value, plane: Bits, line: int, p: int) -> Value:
        """Four bytes of each row of another plane, <lanes x i32>."""
        v = vectors()
        place = self.layout.plane_at(plane) + LINE * line + v.width * p
        return load(b, at(b, self._address, place), vec(i32, v.lanes))


class BlockLines(GroupBlock):
    """``n_lines`` lines of a block of bytes from byte ``start`` of the first one on.

    They are multiplied by the first columns of a block of activations; its others must be 0.
    """

    def __init__(self, kind: int, address: Value, start: Value, n_lines: int) -> None:
        super().__init__(kind, address)
        self._start, self.n_lines = start, n_lines

    def codes(self, b: Value, line: int, p: int) -> Value:
        v = vectors()
        place = self.layout.plane_at(self.layout.main) + LINE * line + v.width * p
        return load(b, at(b, b.add(self._address, self._start), place), vec(i8, v.width))


class BlockDot:
    """The dot products of a block of 32 columns with tokens."""

    def __init__(self, b: Value, block: Any, acts: list[Value]) -> None:
        self._block, self._acts = block, acts
        self._parts: dict[int, tuple[list[Value], Value, Value]] = {}
        self._heads: dict[tuple[int, int], Value] = {}

    def accumulate(self, b: Value, acc: Value, t: int, p: int) -> Value:
        """``acc`` plus the block's products of the rows of part p with token t."""
        if p not in self._parts:
            self._multiply(b, p)
        totals, scale, minimum = self._parts[p]
        product = b.sitofp(totals[t], acc.type)
        acc = fma(b, b.fmul(scale, self._head(b, t, SCALE)), product, acc)
        return fma(b, minimum, self._head(b, t, SUM), acc) if minimum is not None else acc

    def _multiply(self, b: Value, p: int) -> None:
        """Compute the integer sums, [token], of a part and of the others of its group."""
        block, v = self._block, vectors()
        groups = v.part_groups(len(self._acts), block.n_parts, v.block_sums)
        parts = next(group for group in groups if p in group)
        for part, *totals in zip(parts, *self._sums(b, parts), strict=True):
            minimum = block.minimum(b, part) if block.layout.f.low else None
            self._parts[part] = totals, block.scale(b, part), minimum

    def _sums(self, b: Value, parts: range) -> list[list[Value]]:
        """Integer sums over the block, [token][part]."""
        f = self._block.layout.f
        signed = (f.signed or f.values) and not vectors().s8_offset
        return (_signed_sums if signed else _unsigned_sums)(b, self._block, self._acts, parts)

    def _head(self, b: Value, t: int, offset: int) -> Value:
        """A float of a token's block, in every lane."""
        if (t, offset) not in self._heads:
            word = load(b, at(b, self._acts[t], offset), f32)
            self._heads[t, offset] = broadcast(b, word, vectors().lanes)
        return self._heads[t, offset]


def power_of_two(b: Value, e: Value) -> Value:
    """``2^(e - 128)`` of exponents <lanes x i8>, as floats."""
    n = e.type.count
    e = b.zext(e, vec(i32, n))
    small = b.shl(splat(i32, n, 0x00200000), b.and_(e, splat(i32, n, 1)))  # subnormal
    bits = b.shl(b.sub(e, splat(i32, n, 1)), splat(i32, n, 23))
    bits = b.select(b.icmp_unsigned("<", e, splat(i32, n, 2)), small, bits)
    return b.bitcast(bits, vec(f32, n))


def _signed_sums(b: Value, block: Any, acts: list[Value], parts: range) -> list[list[Value]]:
    """Integer sums of int8 values times int8 over a block, [token][part].

    The values are codes of 8 bits, or table entries of codes of up to 4 bits.
    """
    v, values = vectors(), block.layout.f.values
    small = bool(values) and max(map(abs, values)) < 16  # products of 32 columns fit 16 bits
    sums = [[v.u4_zero() if small else v.s8_zero()] * len(parts) for _ in acts]
    for line, halves in _lines(block):
        weights = [_slices(b, block, line, p) for p in parts]
        for k, half in enumerate(halves):
            ready = [v.s8_prepare(b, w[k]) for w in weights]
            for row, act in zip(sums, acts, strict=True):
                a = v.broadcast_bytes(b, at(b, act, CODES_32 + half + 4 * line))
                for p, w in enumerate(ready):
                    row[p] = (v.s5_add if small else v.s8_add)(b, row[p], w, a)
    return [[v.u4_total(b, x) for x in row] for row in sums] if small else sums


def _unsigned_sums(b: Value, block: Any, acts: list[Value], parts: range) -> list[list[Value]]:
    """The same with unsigned codes; sums start at -zero * sum(activations).

    Of signed values the zero is the offset that makes them unsigned.
    """
    v, f = vectors(), block.layout.f
    zero = v.s8_offset if f.signed or f.values else f.zero
    lines = _lines(block)
    fitting = len(lines)  # lines whose products fit a sum
    if f.bits == 5:
        fitting = min(fitting, 2 * v.u5_lines // len(lines[0][1]))
    groups = []
    for first in range(0, len(lines), fitting):
        sums = [[v.u4_zero() if v.u4_is_i16 else _start(b, act, zero)] * len(parts) for act in acts]
        for line, halves in lines[first : first + fitting]:
            codes = [_slices(b, block, line, p) for p in parts]
            # sets with 16-bit sums have 16 registers: they multiply all tokens by one slice first
            tokens, ks = range(len(acts)), range(len(halves))
            order = product(ks, tokens) if v.u4_is_i16 else ((k, t) for t in tokens for k in ks)
            for k, t in order:
                a = v.broadcast_bytes(b, at(b, acts[t], CODES_32 + halves[k] + 4 * line))
                for p, slices in enumerate(codes):
                    sums[t][p] = v.u4_add(b, sums[t][p], slices[k], a)
        groups.append(sums)
    if v.u4_is_i16:  # 32-bit totals of each group, and the initial value
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
    if zero < 8:  # a power of two; the bits that are shifted out are 0
        return b.ashr(eight, splat(i32, lanes, (8 // zero).bit_length() - 1))
    return b.shl(eight, splat(i32, lanes, (zero // 8).bit_length() - 1)) if zero > 8 else eight


def _lines(block: Any) -> list[tuple[int, tuple[int, ...]]]:
    """The lines of a block's low bits, and the first columns of the slices of each."""
    w = block.layout.main.width
    return [(k, tuple(range(0, 32, 4 * w))) for k in range(w)][: block.n_lines]


def _slices(b: Value, block: Any, line: int, p: int) -> list[Value]:
    """The bytes to multiply of the slices of a line."""
    v, q, f = vectors(), block.codes(b, line, p), block.layout.f
    w = block.layout.main.width
    if w == 8:
        return [b.xor(q, splat(i8, v.width, v.s8_offset)) if v.s8_offset else q]
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
        values = tuple(x + v.s8_offset for x in block.layout.values)
        return [v.look_up(b, values, x) for x in slices]
    return slices


def block_slices(b: Value, block: Any, p: int) -> list[Value]:
    """The bytes to multiply of the 8 slices of 4 columns of part ``p`` of a block of 32."""
    by_line = [_slices(b, block, line, p) for line, _ in _lines(block)]
    return [slices[k] for k in range(len(by_line[0])) for slices in by_line]


def signed_codes(b: Value, block: Any) -> list[Value]:
    """A block's 32 columns as int8 values: 8 lines of 4 columns of 16 rows."""
    lines, f = block_slices(b, block, 0), block.layout.f
    if f.signed or f.values:
        offset = splat(i8, LINE, vectors().s8_offset)
        return [b.sub(x, offset) for x in lines]
    return [b.sub(x, splat(i8, LINE, f.zero)) for x in lines] if f.zero else lines


def _moved(b: Value, bits: Value, plane: Bits, k: int) -> Value:
    """A plane's bits of slice ``k``, shifted to their place in a code."""
    w = plane.width
    moved = shifted(b, bits, plane.shift - w * (k // w))
    mask = ((1 << w) - 1 << plane.shift) * 0x01010101
    return b.bitcast(b.and_(moved, like(moved, mask)), vec(i8, vectors().width))


# --- blocks of 256 columns ---


class GroupKBlock:
    """A block of 16 interleaved rows; part p of a line is one vector."""

    def __init__(self, kind: int, address: Value) -> None:
        self.layout = layout_k(kind)
        self._address = address
        self._words_at = 2 * ROWS * self.layout.halves

    def half(self, b: Value, which: int, p: int) -> Value:
        """The scales (0) or the scales of the minima (1), <lanes x float>."""
        v = vectors()
        place = at(b, self._address, 2 * (ROWS * which + v.lanes * p))
        x = load_floats(b, F16, place, v.lanes)
        unit = self.layout.unit
        return b.fmul(x, splat(f32, v.lanes, unit)) if unit != 1 else x

    def sub_scale(self, b: Value, j: Value, p: int) -> Value:
        """The sub-scales of sub-block ``j``, as the argument of ``scaled``."""
        v = vectors()
        place = b.add(self._address, byte_in_lines(b, j))  # first byte of the word
        place = at(b, place, self._words_at + v.width * p)
        words = load(b, place, vec(i32, v.lanes))
        if self.layout.is_shared:
            words = b.and_(words, splat(i32, v.lanes, 0x0F0F0F0F))
        extract = Generic.sub_scale if self.layout.values else type(v).sub_scale
        return extract(v, b, words, signed=self.layout.signed)

    def factor_pairs(self, b: Value, k: int, p: int) -> Value:
        """The factors of sums of activations, <2 lanes x i16>: of sub-blocks j and j + 2.

        They are the sub-minima of each row, or the sub-scales in formats without minima; j is
        0, 1, 4, 5, ..
        """
        v, f = vectors(), self.layout
        line = k // 2 + (f.scale_lines if f.minimum_lines else 0)
        n = 2 * v.lanes
        x = load(b, at(b, self._address, self._words_at + LINE * line + v.width * p), vec(i16, n))
        if f.signed:
            x = x if k % 2 else b.shl(x, splat(i16, n, 8))
            return b.ashr(x, splat(i16, n, 8))
        if self.layout.is_shared:
            return b.and_(b.lshr(x, splat(i16, n, 4 + 8 * (k % 2))), splat(i16, n, 15))
        return b.lshr(x, splat(i16, n, 8)) if k % 2 else b.and_(x, splat(i16, n, 255))

    def slices(self, b: Value, step: Value) -> Callable[[int, int], Value]:
        """``codes(k, p)`` for a step: the codes of slice k, <width x i8>; k must not decrease."""
        v, f = vectors(), self.layout
        start = pointer(b, item_at(b, self._address, step, LINE * f.bits))
        loaded: dict[tuple[int, int], Value] = {}
        joined: dict[tuple[int, int], Value] = {}

        def load_line(line: int, p: int) -> None:
            place = at(b, start, f.codes_at + LINE * line + v.width * p)
            x = loaded[line, p] = load(b, place, vec(i8, v.width))
            for piece in pieces(f.bits):
                if piece.line == line and piece.width < f.bits:
                    y = moved(b, x, piece)
                    before = joined.get((piece.slice, p))
                    joined[piece.slice, p] = y if before is None else b.or_(before, y)

        def codes(k: int, p: int) -> Value:
            mine = [piece for piece in pieces(f.bits) if piece.slice == k]
            for piece in mine:
                if (piece.line, p) not in loaded:
                    load_line(piece.line, p)
            if (k, p) in joined:
                return joined[k, p]
            return moved(b, loaded[mine[0].line, p], mine[0])

        return codes


def byte_in_lines(b: Value, j: Value) -> Value:
    """The offset of byte j of a row in lines of four bytes of each row."""
    return b.add(b.shl(b.lshr(j, const(2)), const(6)), b.and_(j, const(3)))


def moved(b: Value, x: Value, piece: Any) -> Value:
    """The bits of a piece, shifted to their place in a code."""
    x = shifted(b, x, piece.of - piece.at)
    return b.and_(x, like(x, (1 << piece.width) - 1 << piece.of))


class KDot:
    """The dot products of a block with tokens.

    Args:
        prefetch_step: emits the prefetches of a step of 32 columns.
    """

    def __init__(
        self,
        b: Value,
        block: Any,
        acts: list[Value],
        prefetch_step: Callable[[Value], None],
    ) -> None:
        self._block, self._acts = block, acts
        parts = range(vectors().parts)
        self._totals = self._products(b, prefetch_step)
        self._scales = [self._block.half(b, 0, p) for p in parts]
        minima = self._block.layout.minima
        self._minima = [self._block.half(b, 1, p) for p in parts] if minima else []
        self._minimum_totals = self._sum_products(b) if minima else []
        self._d: dict[int, Value] = {}

    def accumulate(self, b: Value, acc: Value, t: int, p: int) -> Value:
        """``acc`` plus the block's products of the rows of part p with token t."""
        if t not in self._d:
            self._d[t] = broadcast_f32(b, self._acts[t], vectors().lanes)
        d = self._d[t]
        acc = fma(b, b.fmul(self._scales[p], d), b.sitofp(self._totals[t][p], acc.type), acc)
        if not self._minima:
            return acc
        offset = b.fneg(b.fmul(self._minima[p], d))
        return fma(b, offset, b.sitofp(self._minimum_totals[t][p], acc.type), acc)

    def _products(self, b: Value, prefetch_step: Callable[[Value], None]) -> list[list[Value]]:
        """Integer sums over the block, [token][part]."""
        v, f = vectors(), self._block.layout
        n_parts, n_sums = v.parts, len(self._acts) * v.parts
        places = _places(b, n_sums) if n_sums > v.row_sums else []
        starts = [x for row in self._starts(b) for x in row]
        for start, place in zip(starts, places, strict=False):
            store(b, start, place)
        length = min(f.sub // 4, 2 * v.u5_lines if f.bits == 5 else 8)  # slices of a sum
        per_step = STEP // f.sub

        def step(i: Value, totals: list[Value]) -> list[Value]:
            totals = list(totals)
            prefetch_step(i)
            codes = self._block.slices(b, i)
            offset = times(b, i, STEP)
            acts = [pointer(b, b.add(act, offset)) for act in self._acts]
            for first in range(0, 8, length):
                half = 4 * first // f.sub
                j = at(b, times(b, i, per_step), half)
                for parts in v.part_groups(len(acts), n_parts, v.block_sums):
                    sums = self._run(b, codes, acts, i, range(first, first + length), parts)
                    if f.scale_lines:
                        scales = [self._block.sub_scale(b, j, p) for p in parts] * len(acts)
                        scaled = b.mul if f.values else partial(v.scaled, b)
                        sums = list(map(scaled, sums, scales))
                    else:
                        sums = [v.u4_total(b, x) for x in sums]
                    numbers = [t * n_parts + p for t in range(len(acts)) for p in parts]
                    for k, y in zip(numbers, sums, strict=True):
                        if places:
                            store(b, b.add(y, load(b, places[k], y.type)), places[k])
                        else:
                            totals[k] = b.add(totals[k], y)
            return totals

        steps = const(STEPS)
        totals = counted_loop(b, steps, [] if places else starts, step)
        totals = totals or [load(b, place, starts[0].type) for place in places]
        return [totals[k : k + n_parts] for k in range(0, n_sums, n_parts)]

    def _run(
        self, b: Value, codes: Any, acts: list[Value], step: Value, slices: range, parts: range
    ) -> list[Value]:
        """Sums of products of some slices and parts, [token * parts + part]."""
        v, f = vectors(), self._block.layout
        table = tuple(x + v.s8_offset for x in f.values)
        signed = table and not v.s8_offset
        sums = []
        for act in self._acts:
            if signed:
                start = v.s8_zero()
            elif self._starts_narrow:
                place = item_at(b, act, step, 8)
                start = v.load_u4_start(b, at(b, place, STARTS + slices[0]), 32 // f.zero)
            else:
                start = v.u4_zero()
            sums += [start] * len(parts)
        for k in slices:
            weights = [codes(k, p) for p in parts]
            weights = [v.look_up(b, table, x) for x in weights] if table else weights
            ready = [v.s8_prepare(b, x) for x in weights] if signed else weights
            for t, place in enumerate(acts):
                a = v.broadcast_bytes(b, at(b, place, CODES_256 + 4 * k))
                for n, w in enumerate(ready, t * len(parts)):
                    sums[n] = (v.s8_add if signed else v.u4_add)(b, sums[n], w, a)
        return sums

    @property
    def _starts_narrow(self) -> bool:
        """Whether sums of sub-blocks (and not of blocks) start at ``-zero * sum(activations)``."""
        f = self._block.layout
        return f.zero != 0 and f.sub < COLUMNS and vectors().load_u4_start is not None

    def _starts(self, b: Value) -> list[list[Value]]:
        """The initial value of the sums over the block, [token][part]."""
        v, f = vectors(), self._block.layout
        if f.sub == COLUMNS:
            starts = []
            for act in self._acts:
                sums = load(b, at(b, act, SUMS_32), vec(i16, STEPS))
                total = call(b, "llvm.vector.reduce.add.v8i16", i16, sums)
                total = b.mul(b.sext(total, i32), ir.Constant(i32, -f.zero))
                starts.append([broadcast(b, total, v.lanes)] * v.parts)
            return starts
        zero = v.s8_offset if f.values else f.zero
        if zero and not self._starts_narrow:
            factor = splat(i32, v.lanes, -zero)
            return [[b.mul(x, factor) for x in row] for row in self._sum_products(b)]
        return [[splat(i32, v.lanes, 0)] * v.parts for _ in self._acts]

    def _sum_products(self, b: Value) -> list[list[Value]]:
        """Integer sums of sub-minima or sub-scales times sums of activations, [token][part]."""
        v, f = vectors(), self._block.layout
        sums_at = SUMS_32 if f.sub == STEP else SUMS_16
        totals = [[splat(i32, v.lanes, 0)] * v.parts for _ in self._acts]
        for k in range(128 // f.sub):
            pairs = [self._block.factor_pairs(b, k, p) for p in range(v.parts)]
            for t, act in enumerate(self._acts):
                word = load(b, at(b, act, sums_at + 4 * k), i32)
                a = b.bitcast(broadcast(b, word, v.lanes), vec(i16, 2 * v.lanes))
                for p, x in enumerate(pairs):
                    totals[t][p] = b.add(totals[t][p], v.pair_dot(b, x, a))
        return totals


def _places(b: Value, n: int) -> list[Value]:
    """Addresses on the stack for ``n`` vectors that do not fit registers."""
    width = vectors().width
    start = stack_memory(b, n * width)
    return [at(b, start, width * k) for k in range(n)]
