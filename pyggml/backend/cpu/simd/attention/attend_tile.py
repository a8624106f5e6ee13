"""Attention's inner loops for 16 query rows and more that share keys: tiles as in a matmul.

    widen_keys(F16, k, nb, cells, 64, 0, 2, panel, ...)      # floats: 64 cells, 64 columns
    score_tile(panel, q, 2, scores, s_stride, 0)             # 16 rows, 64 cells
    widen_values(F16, v, nb, cells, 0, 2, panel, ...)        # 64 cells, 64 columns
    sum_tile(panel, p, p_stride, 2, out, out_stride, 0)      # 16 rows, 64 columns
    split_steps(F16, KEYS, k, nb, cells, 1, ring)            # AMX: the first step
    multiply_and_split(F16, KEYS, 2, ring, 0, 1, q, 64, 18, scores, s_stride, 0, ...)
    turn_scores(scores, s_stride, n)                         # a row of each query

A part of the cache is converted once for all query rows, into memory that stays in L1. A step is 32
columns of keys or 32 cells of values. Two forms:

- floats: a panel of 64 cells times 64 columns is float32. A score is a sum over columns in order, a
  value one over cells in order, so all instruction sets with a multiply-add have equal bits.
- split (AMX): x = hi + lo, two bfloat16 with 8 bits each, exact for F16 and BF16. AMX adds the
  products hi hi, hi lo and lo hi in float32; an error is about 2^-16 of a product. A step of 32
  cells times 32 columns is ``[2][hi, lo]`` tiles of 16 rows, 4 KB. A word of a tile holds elements
  i and i + 16 of the step's columns (keys) or cells (values), so nothing has to be moved between
  lanes. The products of a step are six: of 16 query rows with two groups of cells or columns.

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
from typing import Any

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
    const,
    counted_loop,
    f32,
    for_range,
    i8,
    i32,
    i64,
    item_at,
    load,
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


def split_of(*kinds: int) -> int:
    """The form for the types of a cache: F32 keeps its precision."""
    return SPLIT if vectors().has_tiles and F32 not in kinds else 0


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
    high, half = (splat(i32, n, c) for c in (-1 << 16, 1 << 15))
    highs, lows = [], []
    for part in (x, y):
        hi = b.bitcast(part, vec(i32, n))
        if kind == F32:
            hi = b.select(b.fcmp_unordered("uno", part, part), hi, b.add(hi, half))
        cut = b.bitcast(b.and_(hi, high), part.type)
        lo = b.bitcast(b.fsub(part, cut), vec(i32, n))
        highs.append(hi)
        lows.append(lo if kind in (F16, BF16) else b.add(lo, half))  # of those it is exact
    return [v.high_halves(b, *both, low) for both in (highs, lows)]


def _unit() -> Any:
    """The instruction set, which has the matrix unit."""
    return vectors()


def _split_in_place(b: Value, first: Value, second: Value, low: Value) -> None:
    """Replace two vectors of float32 in memory by the words of their high and low parts."""
    x, y = (load(b, place, vec(f32, GROUP)) for place in (first, second))
    for words, place in zip(_split(b, F32, x, y, low), (first, second), strict=True):
        store(b, words, place)


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
def split_queries(b: Value, split: int, q: Value, n_steps: Value) -> None:
    """Split 16 query rows in place, ``q[column][16]``: two tiles for each step."""
    if split:
        low = _unit().low_halves(b)
        with for_range(b, n_steps) as i, for_range(b, const(GROUP)) as n:
            place = item_at(b, item_at(b, q, i, 2 * _TILE), n, LINE)
            _split_in_place(b, place, at(b, place, _TILE), low)


@intrinsic_from_ir
def split_weights(b: Value, p: Value, stride: Value, n_steps: Value) -> None:
    """Split 16 rows of the weights of cells in place: two lines for each step."""
    low = _unit().low_halves(b)
    with for_range(b, const(GROUP)) as r, for_range(b, n_steps) as i:
        place = item_at(b, item_at(b, p, r, stride), i, 2 * LINE)
        _split_in_place(b, place, at(b, place, LINE), low)


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


@intrinsic_from_ir
def turn_scores(b: Value, scores: Value, stride: Value, n_blocks: Value) -> None:
    """Transpose blocks of 16 by 16 scores in place: row r is then that of query r."""
    rows = [item_at(b, scores, r, stride) for r in range(GROUP)]
    with for_range(b, n_blocks) as i:
        places = [item_at(b, row, i, LINE) for row in rows]
        columns = [x for c in range(0, LINE, 16) for x in columns_of(b, 4, places, const(c))]
        for column, place in zip(columns, places, strict=True):
            store(b, column, place)


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
        first, cells: address of the block's first column in cell 0, list of its cells.
        n_steps: of the block, after which follows the next one.
        more: 1, or 0 if there is no next block: then the first steps stand for its steps.
    """

    b: Value
    kind: int
    of: int
    first: Value
    nb: Value
    cells: Value
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
        return first, item_at(b, self.cells, cells, 8 * STEP)

    def pieces(self, i: Value, slot: Value, low: Value) -> list[Callable[[], None]]:
        """Pieces of code that convert step ``i``, a cell of keys or two of values in each.

        Args:
            low: the mask ``low_halves``.
        """
        b, out = self.b, pointer(self.b, slot)
        first, cells = self._step(i)
        cells = pointer(b, cells)

        def columns(cell: int) -> list[Value]:
            block = item_at(b, first, load(b, at(b, cells, 8 * cell), i64, 8), self.nb)
            of_block = scales(b, self.kind, block)
            return [_sixteen(b, self.kind, block, e, of_block)[0] for e in (0, GROUP)]

        def put(x: Value, y: Value, group: int, row: int) -> None:
            parts = _split(b, self.kind, x, y, low)
            for words, offset in zip(parts, (0, _TILE), strict=True):
                store(b, words, at(b, out, 2 * _TILE * group + offset + LINE * row))

        def key(c: int) -> None:
            x, y = columns(c)
            put(x, y, c // GROUP, c % GROUP)

        def two_values(r: int) -> None:
            for g, (x, y) in enumerate(zip(columns(r), columns(r + GROUP), strict=True)):
                put(x, y, g, r)

        if self.of == KEYS:
            return [partial(key, c) for c in range(STEP)]
        return [partial(two_values, r) for r in range(GROUP)]


@dataclass(frozen=True)
class _Later:
    """Rows that are read later: prefetched line after line, which the hardware continues.

    Attributes:
        cells: list of the cells, of which step i has ``share >> 16`` from i * share >> 16 on.
        lines: of a row, that are prefetched.
    """

    b: Value
    locality: int
    cells: Value
    share: Value
    first: Value
    nb: Value
    lines: Value

    def prefetcher(self, i: Value) -> Callable[[int], None]:
        """Emits one of ``STEP`` prefetches of step ``i``, equal shares of its rows in order."""
        b = self.b
        cells = item_at(b, self.cells, b.lshr(b.mul(i, self.share), const(16)), 8)
        n = b.lshr(b.add(self.share, const((1 << 16) - 1)), const(16))  # rows
        part = times(b, self.lines, LINE // STEP)  # bytes of a row's prefetch, were it the only one

        def one(k: int) -> None:
            place = times(b, n, k)
            row, within = b.udiv(place, const(STEP)), b.and_(place, const(STEP - 1))
            cell = load(b, item_at(b, cells, row, 8), i64, 8)
            start = item_at(b, self.first, cell, self.nb)
            prefetch(b, item_at(b, start, within, part), self.locality)

        return one


def _in_turns(first: list[Callable[[], None]], second: list[Callable[[], None]]) -> None:
    """Emit pieces of code, those of ``second`` distributed among those of ``first``."""
    n, m = len(first), len(second)
    for k, emit in enumerate(first):
        emit()
        for other in second[k * m // n : (k + 1) * m // n]:
            other()


@intrinsic_from_ir(literals=2)
def split_steps(
    b: Value, kind: int, of: int, first: Value, nb: Value, cells: Value, n: Value, ring: Value
) -> None:
    """Convert the first ``n`` steps of a block, of ``KEYS`` or ``VALUES``.

    Args:
        first: address of the block's first column in cell 0.
    """
    block, low = _Block(b, kind, of, first, nb, cells, n, const(0)), _unit().low_halves(b)
    with for_range(b, n) as i:
        for emit in block.pieces(i, item_at(b, ring, i, _SLOT), low):
            emit()


@intrinsic_from_ir(literals=1)
def multiply_steps(
    b: Value, of: int, ring: Value, i: Value, ahead: Value, rows: Value, stride: Value, n: Value,
    out: Value, out_stride: Value, add: Value,
) -> None:  # fmt: skip
    """Multiply ``n`` steps by 16 rows of queries (``KEYS``) or weights (``VALUES``).

    Scores of 32 cells, of cell j the line ``out + j % 16 * out_stride + j // 16 * 64``; or weighted
    sums of 32 columns. They are added to those in memory if ``add``.

    Args:
        i: the number of the first step since those of ``split_steps``.
        ahead: the steps that are converted before they are multiplied.
        rows: what ``split_queries`` or ``split_weights`` made of the first step's.
    """
    _multiply(b, of, (ring, i, ahead), rows, stride, n, out, out_stride, add, None)


@intrinsic_from_ir(literals=3)
def multiply_and_split(
    b: Value, kind: int, of: int, locality: int, ring: Value, i: Value, ahead: Value, rows: Value,
    stride: Value, n: Value, out: Value, out_stride: Value, add: Value, place: Value, first: Value,
    nb: Value, cells: Value, n_steps: Value, more: Value, later: Value, share: Value,
    later_first: Value, nb_later: Value, lines: Value,
) -> None:  # fmt: skip
    """``multiply_steps``, and convert as many steps that are multiplied ``ahead`` later.

    Args:
        place: the first step's place in its block, which has ``n_steps``.
        more: whether another block follows.
        later, share, later_first, lines: what is prefetched, see ``_Later``.
    """
    block = _Block(b, kind, of, first, nb, cells, n_steps, more)
    rows_later = _Later(b, locality, later, share, later_first, nb_later, lines)
    low = _unit().low_halves(b)

    def beside(k: Value) -> list[Callable[[], None]]:
        slot = _slot(b, ring, b.add(b.add(i, k), ahead), ahead)
        pieces = block.pieces(b.add(b.add(place, k), ahead), slot, low)
        one, of_piece = rows_later.prefetcher(b.add(i, k)), STEP // len(pieces)
        prefetches = [partial(one, j) for j in range(STEP)]
        return [
            emit
            for j, piece in enumerate(pieces)
            for emit in (*prefetches[of_piece * j : of_piece * (j + 1)], piece)
        ]

    _multiply(b, of, (ring, i, ahead), rows, stride, n, out, out_stride, add, beside)


def _slot(b: Value, ring: Value, i: Value, ahead: Value) -> Value:
    """The address of step ``i`` in a ring of 2 ``ahead`` slots; ``ahead`` is a power of two."""
    mask = b.sub(times(b, ahead, 2), const(1))
    return item_at(b, ring, b.and_(i, mask), _SLOT)


def _multiply(
    b: Value, of: int, ring: tuple[Value, Value, Value], rows: Value, stride: Value, n: Value,
    out: Value, out_stride: Value, add: Value, beside: Any,
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

    def product(mine: Value, other: Value, of_rows: int, of_step: int, g: int) -> None:
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
        parts = ((0, 0), (0, _TILE), (size, 0))
        products = [partial(product, mine, other, *part, g) for part in parts for g in range(_SUMS)]
        _in_turns(products, beside(k) if beside else [])
    for g, place in enumerate(outs):
        v.store_tile(b, g, place, out_stride)
