"""Rows in ggml's plain layout, read with a row in each lane: times a few tokens, or interleaved.

    set_row_pointers(table, base, stride, first, end)     # in jitted code: addresses of rows
    row_tiles(Q4_0, 1, table, n_rows, x, x_stride, out, out_stride, n) # rows times one token
    pack_rows(F16, table, n, out)                  # 16 rows as an interleaved group
    transpose_rows(table, n, out, stride)          # 16 rows of F32 as columns of 16

``table`` has the addresses of the rows, then of the next ones, which are prefetched meanwhile. A
row's sum has the order of ``tile``, so both have the same bits.
Access: rows front to back, 16 bytes of each at a time, never beyond their end.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from llvmlite import ir
from numba import types

from ....compiler.jit import inline, intrinsic_from_ir
from ....dtype import GGMLType
from ....quants.block import Bits, Field, count, places
from ....quants.ternary import Digits
from ....rounding import ceil_div
from ..abi import i64_ptr
from ..weights.layout import (
    ACTIVATION_BYTES,
    COLUMNS,
    K_TYPES,
    Q8_BLOCK,
    QUANTIZED,
    ROWS,
    STEP,
    STEPS,
    block_bytes,
    is_folded,
    layout_32,
    layout_k,
    pieces,
    source_bytes,
)
from .block_dot import BlockDot, GroupKBlock, KDot, power_of_two
from .isa import fma, vectors, widen
from .transpose import columns_of, elements_of, spread_bits, words_of
from .vector import (
    BF16,
    F16,
    F32,
    LINE,
    at,
    broadcast,
    broadcast_f32,
    const,
    counted_loop,
    f32,
    for_range,
    i8,
    i16,
    i32,
    i64,
    item_at,
    like,
    load,
    part_of,
    prefetch,
    prefetch_lines,
    shifted,
    splat,
    stack_memory,
    store,
    times,
    vec,
)

Value = Any
TABLE_BYTES = 8 * 2 * ROWS  # addresses of a group of rows and of the next
_LOADED = 16  # bytes of a row that are loaded and transposed at once
_PIECE = 256  # bytes of a row of floats that are copied at once


@inline
def set_row_pointers(table, base, stride, first, end):
    """Store the addresses of the rows of two groups, from ``first`` on; row end - 1 repeats."""
    addresses = i64_ptr(table)
    for r in range(2 * ROWS):
        addresses[r] = base + min(first + r, end - 1) * stride


@intrinsic_from_ir
def prefetch_rows(b: Value, table: Value, n_rows: Value, n_bytes: Value) -> None:
    """Prefetch the first ``n_bytes`` of the first rows of a table."""
    with for_range(b, n_rows) as r:
        start = load(b, item_at(b, table, r, 8), i64)
        prefetch_lines(b, start, b.lshr(b.add(n_bytes, const(LINE - 1)), const(6)))


@intrinsic_from_ir
def prefetch_run(b: Value, start: Value, n_bytes: Value) -> None:
    """Prefetch the lines of ``n_bytes``."""
    prefetch_lines(b, start, b.lshr(b.add(n_bytes, const(LINE - 1)), const(6)))


@intrinsic_from_ir(literals=2)
def row_tiles(
    b: Value, kind: int, n_tokens: int, table: Value, n_rows: Value, x: Value, x_stride: Value,
    out: Value, out_stride: Value, n: Value,
) -> None:  # fmt: skip
    """``n_rows`` rows of ``n`` columns times a few tokens: int8 blocks, or float32 for float rows.

    ``table`` has the addresses of the rows, rounded up to a multiple of 16, then of the next 16.
    Strides are in bytes, of a token; each has room for a multiple of 16 results at ``out``.
    """
    emit = _quantized_rows if kind in QUANTIZED else _float_rows
    emit = _k_rows if kind in K_TYPES else emit
    lanes, unit = vectors().lanes, vectors().lanes if emit is _quantized_rows else ROWS
    xs = [item_at(b, x, t, x_stride) for t in range(n_tokens)]
    outs = [item_at(b, out, t, out_stride) for t in range(n_tokens)]
    up = b.add(n_rows, const(unit - 1))
    with for_range(b, b.lshr(up, const(unit.bit_length() - 1))) as i:
        first = times(b, i, unit)
        sums = emit(b, kind, item_at(b, table, first, 8), xs, n)
        places = [
            at(b, item_at(b, y, first, 4), 4 * p) for y in outs for p in range(0, unit, lanes)
        ]
        for acc, place in zip(sums, places, strict=True):
            store(b, acc, place)


def _quantized_rows(b: Value, kind: int, table: Value, xs: list[Value], n: Value) -> list[Value]:
    """The sums of a vector of rows, [token]."""

    def use(blocks: list[RowsBlock], i: Value, accs: list[Value]) -> list[Value]:
        dot = BlockDot(b, blocks[0], [item_at(b, x, i, Q8_BLOCK) for x in xs])
        return [dot.accumulate(b, acc, t, 0) for t, acc in enumerate(accs)]

    lanes = vectors().lanes
    return walk_blocks(b, kind, table, n, lanes, [splat(f32, lanes, 0.0)] * len(xs), use)


def _k_rows(b: Value, kind: int, table: Value, xs: list[Value], n: Value) -> list[Value]:
    """The sums of 16 rows, which are packed block by block, [token * parts + part]."""
    v = vectors()
    packed, columns = stack_memory(b, block_bytes(kind)), GGMLType(kind).block_size

    def use(blocks: list[RowsKBlock], i: Value, accs: list[Value]) -> list[Value]:
        for p, block in enumerate(blocks):
            block.pack(b, packed, p)
        acts = [item_at(b, x, i, ACTIVATION_BYTES[columns]) for x in xs]
        dot = KDot(b, GroupKBlock(kind, packed), acts, lambda step: None)
        return [dot.accumulate(b, acc, *divmod(k, v.parts)) for k, acc in enumerate(accs)]

    zeros = [splat(f32, v.lanes, 0.0)] * (len(xs) * v.parts)
    return walk_blocks(b, kind, table, n, ROWS, zeros, use)


def _float_rows(b: Value, kind: int, table: Value, xs: list[Value], n: Value) -> list[Value]:
    """The sums of 16 rows of floats, [token * parts + part]."""
    v = vectors()

    def use(column: list[Value], i: Value, accs: list[Value]) -> list[Value]:
        offset = b.shl(i, const(2))
        factors = [broadcast_f32(b, b.add(x, offset), v.lanes) for x in xs]
        products = [(w, a) for a in factors for w in column]
        return [fma(b, w, a, acc) for (w, a), acc in zip(products, accs, strict=True)]

    zeros = [splat(f32, v.lanes, 0.0)] * (len(xs) * v.parts)
    return walk_columns(b, Floats(kind), table, n, zeros, use)


@intrinsic_from_ir(literals=1)
def pack_rows(b: Value, kind: int, table: Value, n: Value, out: Value) -> None:
    """Store 16 rows of ``n`` columns as one interleaved group; ``table`` as of ``row_tiles``."""
    columns, lanes = Columns(kind), vectors().lanes

    def store_column(column: Value, i: Value, _: list[Value]) -> list[Value]:
        store(b, column, item_at(b, out, i, ROWS * columns.size))
        return []

    if kind not in QUANTIZED:
        walk_columns(b, columns, table, n, [], store_column)
        return
    for p in range(vectors().parts):

        def store_block(blocks: list[Any], i: Value, _: list[Value], p: int = p) -> list[Value]:
            blocks[0].pack(b, item_at(b, out, i, block_bytes(kind)), p)
            return []

        walk_blocks(b, kind, at(b, table, 8 * lanes * p), n, lanes, [], store_block)


@intrinsic_from_ir(literals=1, result=types.int64)
def packed_block(b: Value, kind: int, start: Value) -> Value:
    """The address of 16 plain blocks, one after the other, as one interleaved block.

    It is memory of the function that is being compiled: the next call overwrites it.
    """
    v, out = vectors(), stack_memory(b, block_bytes(kind))
    rows = [at(b, start, source_bytes(kind) * r) for r in range(ROWS)]
    for p in range(v.parts):
        part = rows[v.lanes * p : v.lanes * (p + 1)]
        RowsBlock(b, kind, part, const(0)).pack(b, out, p)
    return out


@intrinsic_from_ir
def transpose_rows(b: Value, table: Value, n: Value, out: Value, stride: Value) -> None:
    """Store the ``n`` columns of 16 rows of F32, ``stride`` bytes apart; ``table`` as above."""

    def store_column(column: Value, i: Value, _: list[Value]) -> list[Value]:
        store(b, column, b.add(out, b.mul(i, stride)))
        return []

    walk_columns(b, Columns(F32), table, n, [], store_column)


class RowsBlock:
    """A block of ``lanes`` plain rows at byte ``offset`` of each, for ``BlockDot``."""

    n_parts, n_lines = 1, None

    def __init__(self, b: Value, kind: int, rows: list[Value], offset: Value) -> None:
        self.layout = layout_32(kind)
        self._rows, self._offset = rows, offset
        self._lines = {plane: self._plane(b, plane) for plane in self.layout.planes}

    def _plane(self, b: Value, plane: Bits) -> list[Value]:
        """A plane's lines, <lanes x i32> each."""
        place = at(b, self._offset, plane.byte)
        if plane.width < 4:
            words = range(0, 4 * plane.width, 4)
            lines = [elements_of(b, self._rows, at(b, place, k), i32) for k in words]
            return lines if is_folded(plane) else [spread_bits(b, x) for x in lines]
        quarters = range(0, 4 * plane.width, _LOADED)
        return [x for k in quarters for x in words_of(b, self._rows, at(b, place, k))]

    def _field(self, b: Value, field: Field, element: ir.Type) -> Value:
        """The bits of a scale or minimum of each row."""
        return elements_of(b, self._rows, at(b, self._offset, field[0].byte), element)

    def scale(self, b: Value, p: int) -> Value:
        """The scales, <lanes x float>."""
        if self.layout.scale_bytes == 1:
            return power_of_two(b, self._field(b, self.layout.f.d, i8))
        return widen(b, F16, self._field(b, self.layout.f.d, i16))

    def minimum(self, b: Value, p: int) -> Value:
        """The minima, <lanes x float>, of a format that has some."""
        return widen(b, F16, self._field(b, self.layout.f.low, i16))

    def codes(self, b: Value, line: int, p: int) -> Value:
        """The low bits of codes: four bytes of each row, <width x i8>."""
        return b.bitcast(self._lines[self.layout.main][line], vec(i8, vectors().width))

    def high_bits(self, b: Value, plane: Bits, line: int, p: int) -> Value:
        """Four bytes of each row of another plane, <lanes x i32>."""
        return self._lines[plane][line]

    def pack(self, b: Value, target: Value, p: int) -> None:
        """Store it as part ``p`` of the interleaved block at ``target``."""
        v, f, size = vectors(), self.layout.f, self.layout.scale_bytes
        element = i8 if size == 1 else i16
        store(b, self._field(b, f.d, element), at(b, target, size * v.lanes * p))
        if f.low:
            minima = self._field(b, f.low, i16)
            store(b, minima, at(b, target, ROWS * size + 2 * v.lanes * p))
        for plane in self.layout.planes:
            for k, line in enumerate(self._lines[plane]):
                place = self.layout.plane_at(plane) + LINE * k + v.width * p
                store(b, line, at(b, target, place))


class RowsKBlock:
    """A block of 256 columns of ``lanes`` plain rows at byte ``offset`` of each.

    Access: a block's bytes in the order of steps of 32 columns.
    """

    def __init__(self, b: Value, kind: int, rows: list[Value], offset: Value) -> None:
        self._layout, self._rows, self._offset = layout_k(kind), rows, offset

    def pack(self, b: Value, target: Value, p: int) -> None:
        """Store it as part ``p`` of the interleaved block at ``target``."""
        f, v = self._layout, vectors()
        source = f.source
        for j, field in enumerate(filter(None, (source.d, source.low))):
            bits = elements_of(b, self._rows, at(b, self._offset, field[0].byte), i16)
            store(b, bits, at(b, target, 2 * (ROWS * j + v.lanes * p)))
        first = at(b, target, 2 * ROWS * f.halves + v.width * p)
        for j, words in enumerate(self._sub_scales(b)):
            store(b, words, at(b, first, LINE * j))
        lines = at(b, target, f.codes_at + v.width * p)

        def put(place: Value, codes: list[Value]) -> None:
            for j, line in enumerate(self._lines(b, codes)):
                store(b, line, at(b, place, LINE * j))

        if isinstance(source.codes, Digits):
            codes = _digits_of(b, source.codes, self._rows, self._offset)
            for i in range(STEPS):
                put(at(b, lines, LINE * f.bits * i), codes[8 * i : 8 * (i + 1)])
        else:
            with for_range(b, const(STEPS)) as step:
                put(item_at(b, lines, step, LINE * f.bits), self._codes(b, step))

    def _sub_scales(self, b: Value) -> list[Value]:
        """The sub-scales of four sub-blocks in a word, then the sub-minima."""
        layout, f = self._layout, self._layout.source
        if layout.is_shared:  # the format's own bytes
            return self._words(b, (f.steps[0]._replace(width=8),))
        steps = self._words(b, f.steps) if f.steps else []
        if f.step_zero:
            zero = splat(i8, 4 * len(self._rows), f.step_zero)
            steps = [b.bitcast(b.sub(b.bitcast(x, zero.type), zero), x.type) for x in steps]
        return steps + (self._words(b, f.minima) if f.minima else [])

    def _words(self, b: Value, field: Field) -> list[Value]:
        """A field's values, a byte each, four in a word of each row."""
        f = self._layout.source
        first = min(bits.at for bits in f.steps + f.minima) // 8
        start = min(first, f.block_bytes - _LOADED)
        start -= (start - first) % 4  # so that words of the field are loaded words
        loaded = words_of(b, self._rows, at(b, self._offset, start))  # LLVM merges equal loads

        def moved(word: Value, up: int, mask: int) -> Value:
            x = shifted(b, word, up)
            return x if mask == 0xFFFFFFFF else b.and_(x, like(x, mask))

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
            bits = [shifted(b, x, plane.shift) for x in bits]
            codes = [b.or_(x, y) for x, y in zip(codes, bits, strict=True)] if codes else bits
        return codes

    def _lines(self, b: Value, codes: list[Value]) -> list[Value]:
        """Codes of 32 columns, packed."""
        f = self._layout
        lines: list[Value] = [None] * f.bits
        for piece in pieces(f.bits):
            x = codes[piece.slice]
            if piece.width < f.bits:
                x = b.and_(x, like(x, ((1 << piece.width) - 1 << piece.of) * 0x01010101))
            x = shifted(b, x, piece.at - piece.of)
            before = lines[piece.line]
            lines[piece.line] = x if before is None else b.or_(before, x)
        return lines


def _places_at(b: Value, bits: Bits, step: Value) -> list[tuple[Value, Value]]:
    """The byte and the shift of a plane's bits of each half of a step (16 columns).

    The 16 columns are in consecutive bytes, at one shift. So the axes of a plane are split into
    steps, halves of a step and columns of a half.
    """

    byte, shift, half = const(bits.byte), const(0), 0
    inner = COLUMNS  # columns inside an axis' step
    for n, stride in zip(bits.shape, bits.strides, strict=True):
        inner //= n
        n_steps = max(1, n * inner // STEP) // max(1, inner // STEP)  # digits that choose a step
        if n_steps > 1:
            digit = b.lshr(step, const(max(1, inner // STEP).bit_length() - 1))
            digit = b.and_(digit, const(n_steps - 1))
            moved = stride * (n // n_steps)  # bits from one to the next
            if moved % 8:
                shift = b.add(shift, times(b, digit, moved))
            else:
                byte = b.add(byte, times(b, digit, moved // 8))
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
    """The first ``n`` digits in base 3 of each byte: the carries of multiplications by 3."""
    halves = b.bitcast(words, vec(i16, 2 * words.type.count))
    byte = like(halves, 255)
    rests = [b.and_(halves, byte), shifted(b, halves, -8)]
    found = []
    for _ in range(n):
        low, high = (b.mul(x, like(x, 3)) for x in rests)
        digits = b.or_(shifted(b, low, -8), b.and_(high, like(high, 0xFF00)))
        found.append(b.bitcast(digits, words.type))
        rests = [b.and_(x, byte) for x in (low, high)]
    return found


def addresses(b: Value, table: Value, n: int) -> list[Value]:
    """Emit loads of the first ``n`` addresses of a table."""
    return [load(b, at(b, table, 8 * r), i64) for r in range(n)]


def prefetch_share(b: Value, table: Value, n: int, i: Value, step: int, last: Value) -> None:
    """Prefetch a share of one of ``n`` rows, in iteration ``i`` of a loop by ``step`` bytes.

    After the loop all rows up to byte ``last`` are prefetched.
    """
    share = ceil_div(n * step, LINE)  # lines
    row = b.and_(i, const(n - 1))
    line = times(b, b.lshr(i, const(n.bit_length() - 1)), LINE * share)
    line = b.select(b.icmp_signed("<", line, last), line, last)
    place = b.add(load(b, item_at(b, table, row, 8), i64), line)
    for k in range(share):
        prefetch(b, at(b, place, LINE * k))


def walk_blocks(
    b: Value, kind: int, table: Value, n: Value, n_rows: int, carried: list[Value], use: Any
) -> Any:
    """``carried = use(blocks, i, carried)`` for block i of each vector of ``n_rows`` rows."""
    size, lanes = source_bytes(kind), vectors().lanes
    columns = GGMLType(kind).block_size
    n_blocks = b.lshr(n, const(columns.bit_length() - 1))
    last = b.sub(times(b, n_blocks, size), const(1))
    rows, following = addresses(b, table, n_rows), at(b, table, 8 * n_rows)
    made = RowsKBlock if kind in K_TYPES else RowsBlock

    def body(i: Value, carried: list[Value]) -> Any:
        prefetch_share(b, following, n_rows, i, size, last)
        offset = times(b, i, size)
        some = (rows[r : r + lanes] for r in range(0, n_rows, lanes))
        return use([made(b, kind, vector, offset) for vector in some], i, carried)

    return counted_loop(b, n_blocks, carried, body)


class Columns:
    """Loads columns of 16 rows of floats as the bits of 16 elements."""

    def __init__(self, kind: int) -> None:
        self.size = GGMLType(kind).type_size

    def step(self, b: Value, rows: list[Value], offset: Value) -> list[Value]:
        """The columns in 16 bytes of each row."""
        return columns_of(b, self.size, rows, offset)

    def one(self, b: Value, rows: list[Value], offset: Value) -> Value:
        """A single column."""
        return elements_of(b, rows, offset, i32 if self.size == 4 else i16)


class Floats(Columns):
    """Loads columns of 16 rows of floats as float32, each a list of parts."""

    def __init__(self, kind: int) -> None:
        super().__init__(kind)
        self._kind = kind

    def step(self, b: Value, rows: list[Value], offset: Value) -> list[Value]:
        lanes = vectors().lanes
        if self._kind == F16:
            return [self._widened(b, bits) for bits in columns_of(b, 2, rows, offset)]
        parts = [words_of(b, rows[r : r + lanes], offset) for r in range(0, ROWS, lanes)]
        if self._kind == BF16:  # two columns a word: each is the upper half of a float
            high = splat(i32, lanes, 0xFFFF0000)
            parts = [[y for w in p for y in (shifted(b, w, 16), b.and_(w, high))] for p in parts]
        return [
            [b.bitcast(w, vec(f32, lanes)) for w in column] for column in zip(*parts, strict=True)
        ]

    def one(self, b: Value, rows: list[Value], offset: Value) -> Value:
        return self._widened(b, super().one(b, rows, offset))

    def _widened(self, b: Value, bits: Value) -> list[Value]:
        v = vectors()
        parts = (part_of(b, bits, v.lanes * p, v.lanes) for p in range(v.parts))
        if self._kind == F32:
            return [b.bitcast(x, vec(f32, v.lanes)) for x in parts]
        return [widen(b, self._kind, x) for x in parts]


def walk_columns(
    b: Value, columns: Columns, table: Value, n: Value, carried: list[Value], use: Any
) -> Any:
    """``carried = use(column, i, carried)`` for ``n`` columns of 16 rows, in order.

    Rows that are a power of two apart share a set of the first-level cache, which then holds only 8
    of them. So pieces of the rows are copied next to each other first.
    """
    size = columns.size
    per_step, per_piece = _LOADED // size, _PIECE // size
    staged = stack_memory(b, ROWS * _PIECE)
    side_by_side = [at(b, staged, _PIECE * r) for r in range(ROWS)]
    rows = addresses(b, table, ROWS)

    def steps(places: list[Value], start: Value, first: Value, count: Value, carried: Any) -> Any:
        """``count`` steps from byte ``start`` of the places, which is column ``first``."""

        def step(j: Value, carried: list[Value]) -> list[Value]:
            done = times(b, j, _LOADED)
            i = b.add(first, times(b, j, per_step))
            for c, column in enumerate(columns.step(b, places, b.add(start, done))):
                carried = use(column, at(b, i, c), carried)
            return carried

        return counted_loop(b, count, carried, step)

    def piece(k: Value, carried: list[Value]) -> Any:
        offset = times(b, k, _PIECE)
        with for_range(b, const(ROWS)) as r:
            place = b.add(table, b.shl(r, const(3)))
            source = b.add(load(b, place, i64), offset)
            following = b.add(load(b, at(b, place, 8 * ROWS), i64), offset)
            target = item_at(b, staged, r, _PIECE)
            for c in range(0, _PIECE, 32):
                store(b, load(b, at(b, source, c), vec(i32, 8)), at(b, target, c))
            for c in range(0, _PIECE, LINE):
                prefetch(b, at(b, following, c))
        first = times(b, k, per_piece)
        zero, count = const(0), const(_PIECE // _LOADED)
        return steps(side_by_side, zero, first, count, carried)

    n_pieces = b.lshr(n, const(per_piece.bit_length() - 1))
    carried = counted_loop(b, n_pieces, carried, piece)
    done = times(b, n_pieces, per_piece)
    n_steps = b.lshr(b.sub(n, done), const(per_step.bit_length() - 1))
    carried = steps(rows, times(b, done, size), done, n_steps, carried)
    done = b.add(done, times(b, n_steps, per_step))

    def rest(j: Value, carried: list[Value]) -> Any:
        i = b.add(done, j)
        return use(columns.one(b, rows, times(b, i, size)), i, carried)

    return counted_loop(b, b.sub(n, done), carried, rest)
