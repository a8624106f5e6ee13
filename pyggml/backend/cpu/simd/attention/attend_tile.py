"""Attention's inner loops for 16 query rows and more that share keys: tiles as in a matmul.

    widen_keys(F16, k, nb, cells, 64, 0, 2, panel, ...)      # floats: 64 cells, 64 columns
    score_tile(panel, q, 2, scores, s_stride, 0)             # 16 rows, 64 cells
    widen_values(F16, v, nb, cells, 0, 2, panel, ...)        # 64 cells, 64 columns
    sum_tile(panel, p, p_stride, 2, out, out_stride, 0)      # 16 rows, 64 columns
    split_steps(F16, KEYS, k, offsets, 1, ring)              # AMX: the first step
    multiply_and_split(F16, KEYS, 2, 1, 18, ring, 0, 1, q, 64, 18, scores, s_stride, 0, ...)
    turn_scores(score_power(F16), scores, s_stride, n)       # a row of each query
    order_columns(F16, out, out_stride, n)                   # after sums of values

A part of the cache is converted once for all query rows, into memory that stays in L1. A step is 32
columns of keys or 32 cells of values. Two forms:

- floats: a panel of 64 cells times 64 columns is float32. A score is a sum over columns in order, a
  value one over cells in order, so all instruction sets with a multiply-add have equal bits.
- split (AMX): x = hi + lo, two bfloat16 with 8 bits each, exact for F16. AMX adds the products
  hi hi, hi lo and lo hi in float32; an error is about 2^-16 of a product. A step of 32 cells times
  32 columns is ``[2][hi, lo]`` tiles of 16 rows, 4 KB. The products of a step are six: of 16 query
  rows with two groups of cells or columns. BF16 is hi alone, and takes four.

A word of a tile holds two columns of keys, or two cells of values. In a cache of F16 or BF16 the
columns are neighbours, whose bits are a word as they lie; values of cells i and i + 16 are made a
word by one instruction, which changes the order of columns. Parts of F16 are 2^-102 of the number,
by operations on 32 at a time without float32; queries and weights have the inverse factor. Blocks
are converted to float32, with columns i and i + 16 in a word.

AMX multiplies a step while the vector ports convert a later one, whose code stands between the
products. So steps are slots of a ring, ``ahead`` of them until a converted one is multiplied:

    vectors   split 1   split 2   split 3        slot 1, 0, 1
    tiles     step 0    step 1    step 2         slot 0, 1, 0

With one tile of query rows the sums stay in tile registers for all steps; with more of them they
are in memory, since a ring of all columns would not stay in L1.

Scores are computed with query rows as lanes, in memory where ``turn_scores`` transposes blocks of
16 by 16 in place. Access: each part of a row of the cache once; rows of 128 bytes (F16, split: 64)
of one cell after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import log2
from typing import Any

from llvmlite import ir

from .....compiler.jit import intrinsic_from_ir
from ..amx import configuration
from ..isa import fma, load_floats, vectors
from ..kv_row import BLOCK, BLOCK_BYTES, BLOCKS, load_8, load_twice, scales
from ..transpose import columns_of
from ..vector import (
    BF16,
    F16,
    F32,
    LINE,
    at,
    broadcast_f32,
    concat,
    const,
    counted_loop,
    f16,
    f32,
    for_range,
    i8,
    i16,
    i32,
    i64,
    item_at,
    lanes_of,
    load,
    part_of,
    pointer,
    prefetch,
    prefetch_lines,
    splat,
    store,
    times,
    vec,
    when,
)

Value = Any
SPLIT = 1
KEYS, VALUES = range(2)
GROUP = 16  # query rows, cells or columns of a tile
STEP = 32  # columns of keys, or cells of values
_GROUPS = 4  # tiles that a call computes: of cells for scores, of columns for values
KEY_CELLS, KEY_COLUMNS = _GROUPS * GROUP, 64  # of a panel
VALUE_CELLS, VALUE_COLUMNS = 64, _GROUPS * GROUP
PANEL_BYTES = 4 * KEY_CELLS * KEY_COLUMNS  # of a panel, or a ring
_TILE = GROUP * LINE  # bytes
_KEY_ROW = 4 * KEY_COLUMNS  # bytes of a cell in a panel of float32
_VALUE_ROW = 4 * VALUE_COLUMNS
_SUMS = 2  # tile registers of sums; two more have a part of the rows and of the step
BLOCK_OF = _SUMS * GROUP  # cells of a step of keys, columns of one of values
_SLOT = _SUMS * 2 * _TILE  # bytes of a step
MAX_AHEAD_STEPS = PANEL_BYTES // _SLOT // 2
SHAPES = ((GROUP, LINE),) * (_SUMS + 2)
_ROWS, _STEP_TILE = range(_SUMS, _SUMS + 2)
_NEIGHBOURS = (F16, BF16)  # a word of a tile holds columns that are neighbours in the cache
_SCALE = {F16: 2.0**-102}  # factor of the parts of an element of the cache, if not 1
_QUERY_SCALE = {F16: 2.0**64}  # of queries; scores have the rest: 2^102 times one could be infinite


def split_of(*kinds: int) -> int:
    """The form for the types of a cache: F32 keeps its precision."""
    return SPLIT if vectors().has_tiles and F32 not in kinds else 0


def score_power(kind: int) -> int:
    """Scores are the sums times 2 to this power, for keys of a kind."""
    return -round(log2(_SCALE.get(kind, 1) * _QUERY_SCALE.get(kind, 1)))


def _sixteen(b: Value, kind: int, block: Value, e: int, of_block: list[Value]) -> list[Value]:
    """Elements e..e+15 of a block, or of floats, in one vector or two."""
    if vectors().width < LINE:
        return [load_8(b, kind, block, e + i, of_block) for i in (0, 8)]
    if kind not in BLOCKS:
        return [load_floats(b, kind, at(b, block, BLOCK_BYTES[kind] * e), GROUP)]
    return [load_twice(b, kind, [(block, e + i, of_block) for i in (0, 8)])]


def _store_all(b: Value, parts: list[Value], place: Value) -> None:
    for i, part in enumerate(parts):
        store(b, part, at(b, place, 4 * part.type.count * i))


def _split(b: Value, kind: int, x: Value, y: Value, low: Value) -> list[Value]:
    """Words of the high parts of two vectors, and of the low parts; those of x in the low halves.

    Queries and weights (F32) have a rounded high part, so that errors have no common sign. That of
    the cache is cut off: an instruction less, and a carry makes no number of a NaN.

    Args:
        low: the mask ``low_halves``.
    """
    n, v = x.type.count, _unit()
    half = splat(i32, n, 1 << 15)
    highs, lows = [], []
    for part in (x, y):
        hi = b.bitcast(part, vec(i32, n))
        if kind == F32:
            hi = b.select(b.fcmp_unordered("uno", part, part), hi, b.add(hi, half))
        highs.append(hi)
        lows.append(b.add(b.bitcast(_rest(b, part, hi), hi.type), half))
    return [v.high_halves(b, *both, low) for both in (highs, lows)]


def _rest(b: Value, x: Value, high: Value) -> Value:
    """Floats minus those whose bits are the upper halves of ``high``."""
    return b.fsub(x, b.bitcast(b.and_(high, splat(i32, x.type.count, -1 << 16)), x.type))


def _halves(b: Value, x: Value) -> tuple[list[Value], Value]:
    """The parts of 32 F16 with ``|x| < 64``, times ``_SCALE``; and the low part as F16.

    The last is NaN for all other numbers, infinity and NaN. ``y = 2^10 x`` is no denormal F16, nor
    is its low part. The upper bits of a F16 are those of 2^-112 times it, cut off to 8 bits:

        F16       s eeeee mmmmmmmmmm
        bfloat16  s 000eeeee mmmmmmm
    """
    half = vec(f16, STEP)

    def upper_bits(y: Value) -> Value:
        moved = b.ashr(b.bitcast(y, x.type), splat(i16, STEP, 3))
        return b.and_(moved, splat(i16, STEP, ~0x7000))

    y = b.fmul(b.bitcast(x, half), splat(f16, STEP, 2.0**10))
    low = b.fsub(y, b.bitcast(b.and_(b.bitcast(y, x.type), splat(i16, STEP, ~7)), half))
    return [upper_bits(y), upper_bits(low)], low


def _halves_of_any(b: Value, x: Value) -> list[Value]:
    """The parts of 32 F16, whatever they are, by way of float32."""
    highs, lows = [], []
    for first in (0, GROUP):
        y = vectors().half_to_float(b, part_of(b, x, first, GROUP))
        y = b.fmul(y, splat(f32, GROUP, _SCALE[F16]))
        bits = b.bitcast(y, vec(i32, GROUP))
        for part, words in ((bits, highs), (b.bitcast(_rest(b, y, bits), bits.type), lows)):
            words.append(b.trunc(b.lshr(part, splat(i32, GROUP, 16)), vec(i16, GROUP)))
    return [concat(b, words) for words in (highs, lows)]


def _unpacked(b: Value, x: Value, y: Value) -> list[Value]:
    """Words of the elements of two vectors: columns 0-3, 8-11, 16-19, 24-27; then the others.

    So each is one instruction. ``order_columns`` restores the order.
    """
    firsts = [[8 * (i // 4) + i % 4 + half for i in range(GROUP)] for half in (0, 4)]
    return [lanes_of(b, x, y, (k + z for k in first for z in (0, STEP))) for first in firsts]


def _unit() -> Any:
    """The instruction set, which has the matrix unit."""
    return vectors()


def _split_scaled(b: Value, x: Value, y: Value, scale: float, low: Value) -> list[Value]:
    """``_split`` of two vectors of float32, times ``scale``."""
    if scale != 1:
        x, y = (b.fmul(part, splat(f32, GROUP, scale)) for part in (x, y))
    return _split(b, F32, x, y, low)


@intrinsic_from_ir
def use_float_tiles(b: Value, on: Value) -> None:
    """Configure this thread's tiles, or release them (0)."""
    v = _unit()
    with b.if_else(b.icmp_signed("!=", on, const(0))) as (configure, release):
        with configure:
            v.configure_tiles(b, configuration(SHAPES))
        with release:
            v.release_tiles(b)


@intrinsic_from_ir(literals=1)
def split_queries(b: Value, kind: int, q: Value, n_steps: Value) -> None:
    """Split 16 query rows in place, ``q[column][16]``: two tiles for each step of keys."""
    low, scale = _unit().low_halves(b), _QUERY_SCALE.get(kind, 1)
    pairs = [(2 * n, 2 * n + 1) if kind in _NEIGHBOURS else (n, n + GROUP) for n in range(GROUP)]
    with for_range(b, n_steps) as i:
        place = pointer(b, item_at(b, q, i, 2 * _TILE))
        columns = [load(b, at(b, place, LINE * c), vec(f32, GROUP)) for c in range(STEP)]
        for n, (x, y) in enumerate(pairs):
            parts = _split_scaled(b, columns[x], columns[y], scale, low)
            for k, words in enumerate(parts):
                store(b, words, at(b, place, _TILE * k + LINE * n))


@intrinsic_from_ir(literals=1)
def split_weights(b: Value, kind: int, p: Value, stride: Value, n_steps: Value) -> None:
    """Split 16 rows of the weights of cells in place: two lines for each step of values."""
    low, scale = _unit().low_halves(b), 1 / _SCALE.get(kind, 1)
    with for_range(b, const(GROUP)) as r, for_range(b, n_steps) as i:
        place = item_at(b, item_at(b, p, r, stride), i, 2 * LINE)
        places = place, at(b, place, LINE)
        x, y = (load(b, address, vec(f32, GROUP)) for address in places)
        for words, address in zip(_split_scaled(b, x, y, scale, low), places, strict=True):
            store(b, words, address)


def _prefetch_later(
    b: Value, j: Value, later: Value, rows: Value, nb: Value, lines: Value, locality: int
) -> None:
    cell = load(b, item_at(b, later, j, 8), i64, 8)
    prefetch_lines(b, item_at(b, rows, cell, nb), lines, locality)


def _step_bytes(kind: int) -> int:
    return STEP // BLOCK[kind] * BLOCK_BYTES[kind]


@intrinsic_from_ir(literals=2)
def widen_keys(
    b: Value, kind: int, locality: int, keys: Value, nb: Value, cells: Value, n: Value,
    d: Value, n_steps: Value, panel: Value, later: Value, rows: Value, nb_rows: Value, lines: Value,
) -> None:  # fmt: skip
    """Convert columns d to d + 32 ``n_steps`` of the keys in ``n`` cells, at most ``KEY_CELLS``.

    d is a multiple of 32. For each cell prefetches ``lines`` lines of ``rows[later[j]]``.
    """
    first = item_at(b, keys, b.udiv(d, const(STEP)), _step_bytes(kind))
    with for_range(b, n) as j:
        key = item_at(b, first, load(b, item_at(b, cells, j, 8), i64, 8), nb)
        place = item_at(b, panel, j, _KEY_ROW)
        with for_range(b, n_steps) as i:
            block = item_at(b, key, i, _step_bytes(kind))
            of_block = scales(b, kind, block)
            halves = [_sixteen(b, kind, block, e, of_block) for e in (0, GROUP)]
            out = pointer(b, item_at(b, place, i, 4 * STEP))
            _store_all(b, [x for half in halves for x in half], out)
        _prefetch_later(b, j, later, rows, nb_rows, lines, locality)


@intrinsic_from_ir(literals=2)
def widen_values(
    b: Value, kind: int, locality: int, values: Value, nb: Value, cells: Value, d: Value,
    n_steps: Value, panel: Value, later: Value, rows: Value, nb_rows: Value, lines: Value,
) -> None:  # fmt: skip
    """Convert columns d to d + 63 of the values in 32 ``n_steps`` cells, at most ``VALUE_CELLS``.

    d is a multiple of 32. For each cell prefetches ``lines`` lines of ``rows[later[j]]``.
    """
    first = item_at(b, values, b.udiv(d, const(STEP)), _step_bytes(kind))
    with for_range(b, times(b, n_steps, STEP)) as j:
        value = item_at(b, first, load(b, item_at(b, cells, j, 8), i64, 8), nb)
        _prefetch_later(b, j, later, rows, nb_rows, lines, locality)
        blocks = [at(b, value, _step_bytes(kind) * i) for i in range(VALUE_COLUMNS // STEP)]
        columns = [
            x
            for block, of_block in [(block, scales(b, kind, block)) for block in blocks]
            for e in (0, GROUP)
            for x in _sixteen(b, kind, block, e, of_block)
        ]
        _store_all(b, columns, pointer(b, item_at(b, panel, j, _VALUE_ROW)))


def _starts(b: Value, add: Value, places: list[Value], lanes: int) -> list[Value]:
    """The sums in memory where ``add`` is not 0, else zeros."""
    zeros = [splat(f32, lanes, 0.0)] * len(places)
    known = b.icmp_signed("!=", add, const(0))
    return when(b, known, zeros, lambda _: [load(b, x, vec(f32, lanes)) for x in places])


@intrinsic_from_ir
def score_tile(
    b: Value, panel: Value, q: Value, n_steps: Value, scores: Value, stride: Value, add: Value
) -> None:
    """Scores of 16 query rows and the 64 cells of a panel; added to those in memory if ``add``.

    Those of cell i are the line ``scores + i % 16 * stride + i // 16 * 64``.
    """
    lanes = vectors().lanes
    n_vectors = GROUP // lanes
    n_cells = GROUP if vectors().width == LINE else 8 // n_vectors  # whose sums fit registers
    columns = times(b, n_steps, STEP)
    with for_range(b, const(KEY_CELLS // n_cells)) as block:
        first = times(b, block, n_cells)
        line = item_at(b, scores, b.lshr(first, const(4)), LINE)
        line = item_at(b, line, b.and_(first, const(GROUP - 1)), stride)
        keys = item_at(b, panel, first, _KEY_ROW)
        places = [
            at(b, item_at(b, line, i, stride), 4 * lanes * k)
            for i in range(n_cells)
            for k in range(n_vectors)
        ]

        def body(c: Value, accs: list[Value], keys: Value = keys) -> list[Value]:
            queries, key = pointer(b, item_at(b, q, c, LINE)), pointer(b, item_at(b, keys, c, 4))
            xs = [load(b, at(b, queries, 4 * lanes * k), vec(f32, lanes)) for k in range(n_vectors)]
            after = []
            for i in range(n_cells):
                y = broadcast_f32(b, at(b, key, _KEY_ROW * i), lanes)
                after += [fma(b, x, y, acc) for x, acc in zip(xs, accs[len(after) :], strict=False)]
            return after

        sums = counted_loop(b, columns, _starts(b, add, places, lanes), body)
        for total, place in zip(sums, places, strict=True):
            store(b, total, place)


@intrinsic_from_ir(literals=1)
def turn_scores(b: Value, power: int, scores: Value, stride: Value, n_blocks: Value) -> None:
    """Transpose blocks of 16 by 16 scores in place: row r is then that of query r.

    Args:
        power: scores are multiplied by that power of two.
    """
    rows = [item_at(b, scores, r, stride) for r in range(GROUP)]
    with for_range(b, n_blocks) as i:
        places = [item_at(b, row, i, LINE) for row in rows]
        columns = [x for c in range(0, LINE, 16) for x in columns_of(b, 4, places, const(c))]
        for column, place in zip(columns, places, strict=True):
            factor = splat(f32, column.type.count, 2.0**power)
            store(b, b.fmul(b.bitcast(column, factor.type), factor) if power else column, place)


@intrinsic_from_ir
def sum_tile(
    b: Value, panel: Value, p: Value, p_stride: Value, n_steps: Value, out: Value,
    out_stride: Value, add: Value,
) -> None:  # fmt: skip
    """Weighted sums of the 64 columns of a panel for 16 rows; added to those in memory if ``add``.

    The weights of a row are 32 ``n_steps`` floats.
    """
    lanes, n_rows, n_cells = vectors().lanes, 4, times(b, n_steps, STEP)
    n_vectors = _GROUPS if vectors().width == LINE else 2
    width = n_vectors * lanes  # columns at a time
    with (
        for_range(b, const(GROUP // n_rows)) as some,
        for_range(b, const(VALUE_COLUMNS // width)) as part,
    ):
        row = times(b, some, n_rows)
        weights = [item_at(b, p, b.add(row, const(r)), p_stride) for r in range(n_rows)]
        columns = item_at(b, panel, part, 4 * width)
        starts = [item_at(b, out, b.add(row, const(r)), out_stride) for r in range(n_rows)]
        starts = [item_at(b, x, part, 4 * width) for x in starts]
        places = [at(b, x, 4 * lanes * k) for x in starts for k in range(n_vectors)]

        def body(j: Value, accs: list[Value]) -> list[Value]:
            value = pointer(b, item_at(b, columns, j, _VALUE_ROW))
            xs = [load(b, at(b, value, 4 * lanes * k), vec(f32, lanes)) for k in range(n_vectors)]
            after = []
            for w in weights:
                y = broadcast_f32(b, item_at(b, w, j, 4), lanes)
                after += [fma(b, x, y, acc) for x, acc in zip(xs, accs[len(after) :], strict=False)]
            return after

        sums = counted_loop(b, n_cells, _starts(b, add, places, lanes), body)
        for total, place in zip(sums, places, strict=True):
            store(b, total, place)


# --- the split form ---


@dataclass(frozen=True)
class _Block:
    """The steps of a block, which is 32 cells of keys or 32 columns of values.

    Attributes:
        first, offsets: address of the block's first column in cell 0, list of its cells' offsets.
        n_steps: of the block, after which follows the next one.
        more: 1, or 0 if there is no next block: then the first steps stand for its steps.
    """

    b: Value
    kind: int
    of: int
    first: Value
    offsets: Value
    n_steps: Value
    more: Value

    def _step(self, i: Value) -> tuple[Value, Value]:
        """Address of the first column and list of the cells of step ``i``, maybe of the next."""
        b = self.b
        ends = b.icmp_signed(">=", i, self.n_steps)
        i = b.sub(i, b.select(ends, self.n_steps, const(0)))
        block = b.select(ends, self.more, const(0))
        column, cells = (i, block) if self.of == KEYS else (block, i)
        first = item_at(b, self.first, column, _step_bytes(self.kind))
        return first, item_at(b, self.offsets, cells, 8 * STEP)

    def pieces(self, i: Value, slot: Value, low: Value) -> list[Callable[[], None]]:
        """Pieces of code that convert step ``i``: 16 of two cells each, and maybe a correction.

        Args:
            low: the mask ``low_halves``.
        """
        first, cells = self._step(i)
        out, listed = pointer(self.b, slot), pointer(self.b, cells)
        if self.kind not in _NEIGHBOURS:
            return [partial(self._split_two, first, listed, out, r, low) for r in range(GROUP)]
        if self.kind == BF16:
            return [partial(self._copy_two, first, listed, out, r) for r in range(GROUP)]
        seen: list[Value] = [splat(f16, STEP, 0.0)]
        return [
            *(partial(self._halve_two, first, listed, out, r, seen) for r in range(GROUP)),
            partial(self._correct, first, cells, slot, seen),
        ]

    def _rows(self, first: Value, cells: Value, r: int) -> list[Value]:
        """The addresses of cells ``r`` and ``r + 16``."""
        b = self.b
        return [b.add(first, load(b, at(b, cells, 8 * c), i64, 8)) for c in (r, r + GROUP)]

    def _put(self, parts: list[Value], out: Value, group: int, r: int) -> None:
        """Store words of the parts as row ``r`` of their tiles."""
        for k, words in enumerate(parts):
            store(self.b, words, at(self.b, out, _TILE * (2 * group + k) + LINE * r))

    def _split_two(self, first: Value, cells: Value, out: Value, r: int, low: Value) -> None:
        b, columns = self.b, []
        for block in self._rows(first, cells, r):
            of_block = scales(b, self.kind, block)
            columns.append([_sixteen(b, self.kind, block, e, of_block)[0] for e in (0, GROUP)])
        groups = columns if self.of == KEYS else zip(*columns, strict=True)
        for g, (x, y) in enumerate(groups):
            self._put(_split(b, self.kind, x, y, low), out, g, r)

    def _words(self, first: Value, cells: Value, r: int) -> list[Value]:
        """Words of neighbours in two cells, or of two cells' values."""
        b = self.b
        rows = [load(b, row, vec(i16, STEP)) for row in self._rows(first, cells, r)]
        return rows if self.of == KEYS else _unpacked(b, *rows)

    def _copy_two(self, first: Value, cells: Value, out: Value, r: int) -> None:
        for g, words in enumerate(self._words(first, cells, r)):
            self._put([words], out, g, r)

    def _halve_two(self, first: Value, cells: Value, out: Value, r: int, seen: list[Value]) -> None:
        """Convert two cells. The last of ``seen`` becomes NaN if ``_halves`` found a NaN so far."""
        b, lows = self.b, []
        for g, words in enumerate(self._words(first, cells, r)):
            parts, low = _halves(b, words)
            self._put(parts, out, g, r)
            lows.append(low)
        seen.append(_unit().add_half_products(b, seen[-1], *lows))

    def _correct(self, first: Value, cells: Value, slot: Value, seen: list[Value]) -> None:
        """Convert the step again if ``_halves`` does not suffice."""
        b = self.b
        large = b.bitcast(b.fcmp_unordered("uno", seen[-1], seen[-1]), i32)
        with (
            b.if_then(b.icmp_unsigned("!=", large, ir.Constant(i32, 0)), likely=False),
            for_range(b, const(GROUP)) as r,
        ):
            out, listed = item_at(b, slot, r, LINE), item_at(b, cells, r, 8)
            for g, words in enumerate(self._words(first, listed, 0)):
                self._put(_halves_of_any(b, words), out, g, 0)


@dataclass(frozen=True)
class _Later:
    """Rows that are read later: prefetched line after line, which the hardware continues.

    Attributes:
        n_rows, n_lines: of a step, of a row.
        cells: list of the cells, of which those of step i begin at i * share >> 16.
    """

    b: Value
    locality: int
    n_rows: int
    n_lines: int
    cells: Value
    share: Value
    first: Value
    nb: Value

    def prefetches(self, i: Value) -> list[Callable[[], None]]:
        """Pieces of code that prefetch the lines of step ``i``."""
        b = self.b
        cells = pointer(b, item_at(b, self.cells, b.lshr(b.mul(i, self.share), const(16)), 8))
        rows: dict[int, Value] = {}

        def one(row: int, line: int) -> None:
            if line == 0:
                cell = load(b, at(b, cells, 8 * row), i64, 8)
                rows[row] = pointer(b, item_at(b, self.first, cell, self.nb))
            prefetch(b, at(b, rows[row], LINE * line), self.locality)

        return [partial(one, *x) for x in product(range(self.n_rows), range(self.n_lines))]


def _in_turns(first: list[Callable[[], None]], second: list[Callable[[], None]]) -> list[Any]:
    """Pieces of code, those of ``second`` distributed among those of ``first``."""
    n, m, both = len(first), len(second), []
    for k, emit in enumerate(first):
        both += [emit, *second[k * m // n : (k + 1) * m // n]]
    return both


@intrinsic_from_ir(literals=2)
def split_steps(
    b: Value, kind: int, of: int, first: Value, offsets: Value, n: Value, ring: Value
) -> None:
    """Convert the first ``n`` steps of a block, of ``KEYS`` or ``VALUES``.

    Args:
        first: address of the block's first column in cell 0.
        offsets: bytes from there on of each cell, int64.
    """
    block, low = _Block(b, kind, of, first, offsets, n, const(0)), _unit().low_halves(b)
    with for_range(b, n) as i:
        for emit in block.pieces(i, item_at(b, ring, i, _SLOT), low):
            emit()


@intrinsic_from_ir(literals=2)
def multiply_steps(
    b: Value, kind: int, of: int, ring: Value, i: Value, ahead: Value, rows: Value, stride: Value,
    n: Value, out: Value, out_stride: Value, add: Value,
) -> None:  # fmt: skip
    """Multiply ``n`` steps by 16 rows of queries (``KEYS``) or weights (``VALUES``).

    Scores of 32 cells, of cell j the line ``out + j % 16 * out_stride + j // 16 * 64``; or weighted
    sums of 32 columns. They are added to those in memory if ``add``.

    Args:
        i: the number of the first step since those of ``split_steps``.
        ahead: the steps that are converted before they are multiplied.
        rows: what ``split_queries`` or ``split_weights`` made of the first step's.
    """
    _multiply(b, kind, of, (ring, i, ahead), rows, stride, n, out, out_stride, add, None)


@intrinsic_from_ir(literals=5)
def multiply_and_split(
    b: Value, kind: int, of: int, locality: int, n_later: int, lines: int, ring: Value, i: Value,
    ahead: Value, rows: Value, stride: Value, n: Value, out: Value, out_stride: Value, add: Value,
    place: Value, first: Value, offsets: Value, n_steps: Value, more: Value, later: Value,
    share: Value, later_first: Value, nb_later: Value,
) -> None:  # fmt: skip
    """``multiply_steps``, and convert as many steps that are multiplied ``ahead`` later.

    Args:
        place: the first step's place in its block, which has ``n_steps``.
        more: whether another block follows.
        n_later, lines, later, share, later_first, nb_later: what is prefetched, see ``_Later``.
    """
    block = _Block(b, kind, of, first, offsets, n_steps, more)
    rows_later = _Later(b, locality, n_later, lines, later, share, later_first, nb_later)
    low = _unit().low_halves(b)

    def beside(k: Value) -> list[Callable[[], None]]:
        slot = _slot(b, ring, b.add(b.add(i, k), ahead), ahead)
        pieces = block.pieces(b.add(b.add(place, k), ahead), slot, low)
        return _in_turns(pieces, rows_later.prefetches(b.add(i, k)))

    _multiply(b, kind, of, (ring, i, ahead), rows, stride, n, out, out_stride, add, beside)


@intrinsic_from_ir(literals=1)
def order_columns(b: Value, kind: int, sums: Value, stride: Value, n_blocks: Value) -> None:
    """Restore the order of columns in 16 rows of the weighted sums of blocks."""
    if kind not in _NEIGHBOURS:
        return
    fours = [[i, i + 1, i + 2, i + 3] for i in range(0, 2 * GROUP, 4)]
    order = [k for pair in zip(fours[:4], fours[4:], strict=True) for four in pair for k in four]
    with for_range(b, const(GROUP)) as r, for_range(b, n_blocks) as i:
        place = item_at(b, item_at(b, sums, r, stride), i, 4 * BLOCK_OF)
        places = [at(b, place, LINE * g) for g in range(_SUMS)]
        both = [load(b, x, vec(f32, GROUP)) for x in places]
        for g, x in enumerate(places):
            store(b, lanes_of(b, *both, order[GROUP * g : GROUP * (g + 1)]), x)


def _slot(b: Value, ring: Value, i: Value, ahead: Value) -> Value:
    """The address of step ``i`` in a ring of 2 ``ahead`` slots; ``ahead`` is a power of two."""
    mask = b.sub(times(b, ahead, 2), const(1))
    return item_at(b, ring, b.and_(i, mask), _SLOT)


def _multiply(
    b: Value, kind: int, of: int, ring: tuple[Value, Value, Value], rows: Value, stride: Value,
    n: Value, out: Value, out_stride: Value, add: Value, beside: Any,
) -> None:  # fmt: skip
    """Multiply steps with AMX, see ``multiply_steps``.

    Args:
        ring: the arguments ``ring``, ``i`` and ``ahead``.
        beside: gives the pieces of code that are emitted between the products of a step; or None.
    """
    v, (slots, first, ahead) = _unit(), ring
    size = _TILE if of == KEYS else LINE  # of a part of the rows
    # The cells of keys are rows of the result, the columns of values its columns
    factors = (_STEP_TILE, _ROWS) if of == KEYS else (_ROWS, _STEP_TILE)
    outs = [b.inttoptr(at(b, out, LINE * g), i8.as_pointer()) for g in range(_SUMS)]

    def multiply(mine: Value, other: Value, of_rows: int, of_step: int, g: int) -> None:
        if (of_step, g) == (0, 0):
            v.load_tile(b, _ROWS, b.inttoptr(at(b, other, of_rows), i8.as_pointer()), stride)
        place = at(b, mine, 2 * _TILE * g + of_step)
        v.load_tile(b, _STEP_TILE, b.inttoptr(place, i8.as_pointer()), const(LINE))
        v.multiply_float_tiles(b, g, *factors)

    with b.if_else(b.icmp_signed("!=", add, const(0))) as (sums, zeros):
        with sums:
            for g, place in enumerate(outs):
                v.load_tile(b, g, place, out_stride)
        with zeros:
            for g in range(_SUMS):
                v.zero_tile(b, g)
    with for_range(b, n) as k:
        mine = _slot(b, slots, b.add(first, k), ahead)
        other = item_at(b, rows, k, 2 * size)
        parts = ((0, 0), *(() if kind == BF16 else ((0, _TILE),)), (size, 0))
        products = [
            partial(multiply, mine, other, *part, g) for part in parts for g in range(_SUMS)
        ]
        for emit in _in_turns(products, beside(k) if beside else []):
            emit()
    for g, place in enumerate(outs):
        v.store_tile(b, g, place, out_stride)
