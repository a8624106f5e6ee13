"""Rows in ggml's plain layout, wherever they lie, read with a row in each lane.

    walk_blocks(b, Q4_0, table, n, carried, use)   # a vector of rows of blocks
    walk_columns(b, Floats(F16), table, n, carried, use)      # 16 rows of floats

``table`` has the addresses of the rows, then of those that come next, which are prefetched
meanwhile. Access: rows front to back, 16 bytes of each at a time, never beyond their end.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from ....quants.block import Bits, Field
from ..layout import K_TYPES, ROWS, is_folded, layout_32, source_bytes
from .kquant_pack import RowsKBlock
from .loop import counted_loop
from .product import power_of_two
from .transpose import columns_of, elements_of, spread_bits, words_of
from .vector import (
    LINE,
    at,
    f32,
    i8,
    i16,
    i32,
    i64,
    load,
    prefetch,
    splat,
    store,
    vec,
    vectors,
)  # fmt: skip

Value = Any
F16, BF16, F32 = int(GGMLType.F16), int(GGMLType.BF16), int(GGMLType.F32)
_STEP = 16  # bytes of a row that are transposed at once
_PIECE = 256  # and that are copied at once, of float rows


class RowsBlock:
    """A block of ``lanes`` plain rows, for ``BlockDot``; ``offset`` is its place in the rows."""

    n_parts = 1

    def __init__(self, b: Value, kind: int, rows: list[Value], offset: Value) -> None:
        self.layout = layout_32(kind)
        self._rows, self._offset = rows, offset
        self._lines = {plane: self._plane(b, plane) for plane in self.layout.planes}

    def _plane(self, b: Value, plane: Bits) -> list[Value]:
        """A plane's lines, <lanes x i32> each."""
        place = at(b, self._offset, plane.at // 8)
        if plane.width < 4:
            words = range(0, 4 * plane.width, 4)
            lines = [elements_of(b, self._rows, at(b, place, k), i32) for k in words]
            return lines if is_folded(plane) else [spread_bits(b, x) for x in lines]
        quarters = range(0, 4 * plane.width, _STEP)
        return [x for k in quarters for x in words_of(b, self._rows, at(b, place, k))]

    def _field(self, b: Value, field: Field, element: ir.Type) -> Value:
        """The bits of a scale or minimum of each row."""
        return elements_of(b, self._rows, at(b, self._offset, field[0].at // 8), element)

    def scale(self, b: Value, p: int) -> Value:
        """<lanes x float>."""
        if self.layout.scale_bytes == 1:
            return power_of_two(b, self._field(b, self.layout.f.d, i8))
        return vectors().half_to_float(b, self._field(b, self.layout.f.d, i16))

    def minimum(self, b: Value, p: int) -> Value:
        """<lanes x float>, of a format that has minima."""
        return vectors().half_to_float(b, self._field(b, self.layout.f.low, i16))

    def codes(self, b: Value, line: int, p: int) -> Value:
        """<width x i8>: four bytes of the low bits of codes of each row."""
        return b.bitcast(self._lines[self.layout.main][line], vec(i8, vectors().width))

    def high_bits(self, b: Value, plane: Bits, line: int, p: int) -> Value:
        """<lanes x i32>: four bytes of another plane."""
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


@intrinsic
def prefetch_rows(typingctx: Any, table: Any, n_rows: Any, n_bytes: Any) -> Any:
    """Ask memory for the first rows of a table, one after the other: nobody did before."""

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        table, n_rows, n_bytes = args

        def row(r: Value, _: list[Value]) -> list[Value]:
            start = load(b, b.add(table, b.shl(r, ir.Constant(i64, 3))), i64)

            def line(k: Value, _: list[Value]) -> list[Value]:
                prefetch(b, b.add(start, b.mul(k, ir.Constant(i64, LINE))))
                return []

            lines = b.lshr(b.add(n_bytes, ir.Constant(i64, LINE - 1)), ir.Constant(i64, 6))
            counted_loop(b, lines, [], line)
            return []

        counted_loop(b, n_rows, [], row)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


def addresses(b: Value, table: Value, n: int) -> list[Value]:
    """The first ``n`` addresses of a table."""
    return [load(b, at(b, table, 8 * r), i64) for r in range(n)]


def prefetch_share(b: Value, table: Value, n: int, i: Value, step: int, last: Value) -> None:
    """Prefetch a share of one of ``n`` rows, in iteration ``i`` of a loop by ``step`` bytes.

    After the loop all rows up to byte ``last`` are prefetched.
    """
    share = -(-n * step // LINE)  # lines
    row = b.and_(i, ir.Constant(i64, n - 1))
    line = b.mul(b.lshr(i, ir.Constant(i64, n.bit_length() - 1)), ir.Constant(i64, LINE * share))
    line = b.select(b.icmp_signed("<", line, last), line, last)
    place = b.add(load(b, b.add(table, b.shl(row, ir.Constant(i64, 3))), i64), line)
    for k in range(share):
        prefetch(b, at(b, place, LINE * k))


def walk_blocks(b: Value, kind: int, table: Value, n: Value, carried: list[Value], use: Any) -> Any:
    """``carried = use(block, i, carried)`` for the blocks of a vector of rows, in order."""
    size, lanes = source_bytes(kind), vectors().lanes
    columns = GGMLType(kind).block_size
    n_blocks = b.lshr(n, ir.Constant(i64, columns.bit_length() - 1))
    last = b.sub(b.mul(n_blocks, ir.Constant(i64, size)), ir.Constant(i64, 1))
    rows, following = addresses(b, table, lanes), at(b, table, 8 * lanes)

    def body(i: Value, carried: list[Value]) -> Any:
        prefetch_share(b, following, lanes, i, size, last)
        offset = b.mul(i, ir.Constant(i64, size))
        block = (RowsKBlock if kind in K_TYPES else RowsBlock)(b, kind, rows, offset)
        return use(block, i, carried)

    return counted_loop(b, n_blocks, carried, body)


class Columns:
    """Columns of 16 float rows as the bits of 16 elements."""

    def __init__(self, kind: int) -> None:
        self.size = 4 if kind == F32 else 2

    def step(self, b: Value, rows: list[Value], offset: Value) -> list[Value]:
        """The columns in 16 bytes of each row."""
        return columns_of(b, self.size, rows, offset)

    def one(self, b: Value, rows: list[Value], offset: Value) -> Value:
        """A single column."""
        return elements_of(b, rows, offset, i32 if self.size == 4 else i16)


class Floats(Columns):
    """Columns of 16 float rows as float32, each a list of parts."""

    def __init__(self, kind: int) -> None:
        super().__init__(kind)
        self._kind = kind

    def step(self, b: Value, rows: list[Value], offset: Value) -> list[Value]:
        lanes = vectors().lanes
        if self._kind == F16:
            return [self._widened(b, bits) for bits in columns_of(b, 2, rows, offset)]
        parts = [words_of(b, rows[r : r + lanes], offset) for r in range(0, ROWS, lanes)]
        if self._kind == BF16:  # two columns a word: each is the upper half of a float
            low, high = splat(i32, lanes, 16), splat(i32, lanes, 0xFFFF0000)
            parts = [[y for w in p for y in (b.shl(w, low), b.and_(w, high))] for p in parts]
        return [
            [b.bitcast(w, vec(f32, lanes)) for w in column] for column in zip(*parts, strict=True)
        ]

    def one(self, b: Value, rows: list[Value], offset: Value) -> Value:
        return self._widened(b, super().one(b, rows, offset))

    def _widened(self, b: Value, bits: Value) -> list[Value]:
        v = vectors()
        parts = []
        for p in range(v.parts):
            lanes = ir.Constant(vec(i32, v.lanes), list(range(v.lanes * p, v.lanes * (p + 1))))
            x = b.shuffle_vector(bits, ir.Constant(bits.type, ir.Undefined), lanes)
            if self._kind == F16:
                parts.append(v.half_to_float(b, x))
                continue
            if self._kind == BF16:
                x = b.shl(b.zext(x, vec(i32, v.lanes)), splat(i32, v.lanes, 16))
            parts.append(b.bitcast(x, vec(f32, v.lanes)))
        return parts


def walk_columns(
    b: Value, columns: Columns, table: Value, n: Value, carried: list[Value], use: Any
) -> Any:
    """``carried = use(column, i, carried)`` for ``n`` columns of 16 rows, in order.

    Rows that lie a power of two apart share one set of the first cache, which then holds 8 of
    them: so pieces of rows are copied side by side first.
    """
    size = columns.size
    per_step, per_piece = _STEP // size, _PIECE // size
    with b.goto_entry_block():
        memory = b.alloca(ir.ArrayType(i8, ROWS * _PIECE))
        memory.align = LINE
    staged = b.ptrtoint(memory, i64)
    side_by_side = [at(b, staged, _PIECE * r) for r in range(ROWS)]
    rows = addresses(b, table, ROWS)

    def steps(places: list[Value], start: Value, first: Value, count: Value, carried: Any) -> Any:
        """``count`` steps from byte ``start`` of the places, which is column ``first``."""

        def step(j: Value, carried: list[Value]) -> list[Value]:
            done = b.mul(j, ir.Constant(i64, _STEP))
            i = b.add(first, b.mul(j, ir.Constant(i64, per_step)))
            for c, column in enumerate(columns.step(b, places, b.add(start, done))):
                carried = use(column, at(b, i, c), carried)
            return carried

        return counted_loop(b, count, carried, step)

    def piece(k: Value, carried: list[Value]) -> Any:
        offset = b.mul(k, ir.Constant(i64, _PIECE))

        def copy(r: Value, _: list[Value]) -> list[Value]:
            place = b.add(table, b.shl(r, ir.Constant(i64, 3)))
            source = b.add(load(b, place, i64), offset)
            following = b.add(load(b, at(b, place, 8 * ROWS), i64), offset)
            target = b.add(staged, b.mul(r, ir.Constant(i64, _PIECE)))
            for c in range(0, _PIECE, 32):
                store(b, load(b, at(b, source, c), vec(i32, 8)), at(b, target, c))
            for c in range(0, _PIECE, LINE):
                prefetch(b, at(b, following, c))
            return []

        counted_loop(b, ir.Constant(i64, ROWS), [], copy)
        first = b.mul(k, ir.Constant(i64, per_piece))
        zero, count = ir.Constant(i64, 0), ir.Constant(i64, _PIECE // _STEP)
        return steps(side_by_side, zero, first, count, carried)

    n_pieces = b.lshr(n, ir.Constant(i64, per_piece.bit_length() - 1))
    carried = counted_loop(b, n_pieces, carried, piece)
    done = b.mul(n_pieces, ir.Constant(i64, per_piece))
    n_steps = b.lshr(b.sub(n, done), ir.Constant(i64, per_step.bit_length() - 1))
    carried = steps(rows, b.mul(done, ir.Constant(i64, size)), done, n_steps, carried)
    done = b.add(done, b.mul(n_steps, ir.Constant(i64, per_step)))

    def rest(j: Value, carried: list[Value]) -> Any:
        i = b.add(done, j)
        return use(columns.one(b, rows, b.mul(i, ir.Constant(i64, size))), i, carried)

    return counted_loop(b, b.sub(n, done), carried, rest)
