"""Attention's inner loops for 16 query rows and more that share keys: tiles as in a matmul.

    widen_keys(F16, SPLIT, 2, k, nb, cells, n, d, n_steps, panel, ...)    # 64 cells, 128 columns
    score_tile(SPLIT, panel, q, n_steps, scores, s_stride, 0)             # 16 rows, 64 cells
    turn_scores(scores, s_stride, n)                                      # a row of each query
    widen_values(F16, SPLIT, 2, v, nb, cells, d, n_steps, panel, ...)     # 128 cells, 64 columns
    sum_tile(SPLIT, panel, p, p_stride, n_steps, out, out_stride, 0)      # 16 rows, 64 columns

A part of the cache is converted once for all query rows, into a panel that stays in L1. A step is
32 columns of keys or 32 cells of values. Two forms, by a literal:

- floats (0): a panel is float32. A score is a sum over columns in order, a value one over cells in
  order, so all instruction sets with a multiply-add have equal bits.
- split (``SPLIT``, AMX): x = hi + lo, two bfloat16 with 8 bits each, exact for F16 and BF16. AMX
  adds the products hi hi, hi lo and lo hi in float32; an error is about 2^-16 of a product. Each
  part of a step is a tile of 16 rows: panels are ``[step][4][hi, lo]`` tiles of 1 KB. A word of a
  tile holds elements i and i + 16 of a step, so nothing has to be moved between lanes.

Scores are computed with query rows as lanes, in memory where ``turn_scores`` transposes blocks of
16 by 16 in place. Access: each part of a row of the cache once; rows of 128 bytes (F16) of one cell
after the other.
"""

from __future__ import annotations

from typing import Any

from ....compiler.jit import intrinsic_from_ir
from .amx import configuration
from .isa import fma, load_floats, vectors
from .kv_row import BLOCK, BLOCK_BYTES, BLOCKS, load_8, load_twice, scales
from .transpose import columns_of
from .vector import (
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
    kept_in_order,
    load,
    pointer,
    prefetch_lines,
    splat,
    store,
    times,
    vec,
    when,
)

Value = Any
SPLIT = 1
GROUP = 16  # query rows, cells or columns of a tile
STEP = 32  # columns of keys, or cells of values
_GROUPS = 4  # tiles that a call computes: of cells for scores, of columns for values
KEY_CELLS, KEY_COLUMNS = _GROUPS * GROUP, 64  # of a panel
VALUE_CELLS, VALUE_COLUMNS = 64, _GROUPS * GROUP
PANEL_BYTES = 4 * KEY_CELLS * KEY_COLUMNS
_TILE = GROUP * LINE  # bytes
_KEY_ROW = 4 * KEY_COLUMNS  # bytes of a cell in a panel of float32
_VALUE_ROW = 4 * VALUE_COLUMNS
_SUMS = 2  # tile registers of sums; two more have a part of the rows and of the panel
SHAPES = ((GROUP, LINE),) * (_SUMS + 2)
_ROWS, _PANEL = range(_SUMS, _SUMS + 2)


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


def _split(b: Value, kind: int, x: Value, y: Value) -> tuple[Value, Value]:
    """Words of the high parts of two vectors, and of the low parts; those of x in the low halves.

    Queries and weights (F32) have a rounded high part, so that errors have no common sign. That of
    the cache is cut off: an instruction less, and a carry makes no number of a NaN.
    """
    n = x.type.count
    high, half, by = (splat(i32, n, c) for c in (-1 << 16, 1 << 15, 16))
    highs, lows = [], []
    for v in (x, y):
        hi = b.bitcast(v, vec(i32, n))
        if kind == F32:
            hi = b.select(b.fcmp_unordered("uno", v, v), hi, b.add(hi, half))
        cut = b.and_(hi, high)
        lo = b.bitcast(b.fsub(v, b.bitcast(cut, v.type)), vec(i32, n))
        highs.append((hi, cut))
        lows.append(lo if kind in (F16, BF16) else b.add(lo, half))  # of those it is exact
    words = b.or_(b.lshr(highs[0][0], by), highs[1][1])
    # LLVM would make a shuffle of words of it, which is three instructions
    shifted = kept_in_order(b, b.lshr(lows[0], by))
    return words, b.or_(shifted, b.and_(lows[1], high))


def _split_in_place(b: Value, first: Value, second: Value) -> None:
    """Replace two vectors of float32 in memory by the words of their high and low parts."""
    x, y = (load(b, place, vec(f32, GROUP)) for place in (first, second))
    for words, place in zip(_split(b, F32, x, y), (first, second), strict=True):
        store(b, words, place)


@intrinsic_from_ir(literals=1)
def use_float_tiles(b: Value, split: int, on: Value) -> None:
    """With AMX, configure this thread's tiles or release them (0)."""
    if not split:
        return
    v: Any = vectors()
    with b.if_else(b.icmp_signed("!=", on, const(0))) as (configure, release):
        with configure:
            v.configure_tiles(b, configuration(SHAPES))
        with release:
            v.release_tiles(b)


@intrinsic_from_ir(literals=1)
def split_queries(b: Value, split: int, q: Value, n_steps: Value) -> None:
    """Split 16 query rows in place, ``q[column][16]``: two tiles for each step."""
    if split:
        with for_range(b, n_steps) as i:
            tile = item_at(b, q, i, 2 * _TILE)
            with for_range(b, const(GROUP)) as n:
                place = item_at(b, tile, n, LINE)
                _split_in_place(b, place, at(b, place, _TILE))


@intrinsic_from_ir(literals=1)
def split_weights(b: Value, split: int, p: Value, stride: Value, n_steps: Value) -> None:
    """Split 16 rows of the weights of cells in place: two lines for each step."""
    if split:
        with for_range(b, const(GROUP)) as r:
            row = item_at(b, p, r, stride)
            with for_range(b, n_steps) as i:
                place = item_at(b, row, i, 2 * LINE)
                _split_in_place(b, place, at(b, place, LINE))


def _prefetch_later(
    b: Value, j: Value, later: Value, rows: Value, nb: Value, lines: Value, locality: int
) -> None:
    cell = load(b, item_at(b, later, j, 8), i64, 8)
    prefetch_lines(b, item_at(b, rows, cell, nb), lines, locality)


def _step_bytes(kind: int) -> int:
    return STEP // BLOCK[kind] * BLOCK_BYTES[kind]


@intrinsic_from_ir(literals=3)
def widen_keys(
    b: Value, kind: int, split: int, locality: int, keys: Value, nb: Value, cells: Value, n: Value,
    d: Value, n_steps: Value, panel: Value, later: Value, rows: Value, nb_rows: Value, lines: Value,
) -> None:  # fmt: skip
    """Convert columns d to d + 32 ``n_steps`` of the keys in ``n`` cells, at most ``KEY_CELLS``.

    d is a multiple of 32. For each cell prefetches ``lines`` lines of ``rows[later[j]]``.
    """
    first = item_at(b, keys, b.udiv(d, const(STEP)), _step_bytes(kind))
    with for_range(b, n) as j:
        key = item_at(b, first, load(b, item_at(b, cells, j, 8), i64, 8), nb)
        if split:  # the tile and the row of the cell
            tile = item_at(b, panel, b.lshr(j, const(4)), 2 * _TILE)
            place = item_at(b, tile, b.and_(j, const(GROUP - 1)), LINE)
        else:
            place = item_at(b, panel, j, _KEY_ROW)
        with for_range(b, n_steps) as i:
            block = item_at(b, key, i, _step_bytes(kind))
            of_block = scales(b, kind, block)
            halves = [_sixteen(b, kind, block, e, of_block) for e in (0, GROUP)]
            if split:
                out = pointer(b, item_at(b, place, i, _GROUPS * 2 * _TILE))
                parts = _split(b, kind, halves[0][0], halves[1][0])
                for part, offset in zip(parts, (0, _TILE), strict=True):
                    store(b, part, at(b, out, offset))
            else:
                out = pointer(b, item_at(b, place, i, 4 * STEP))
                _store_all(b, [x for half in halves for x in half], out)
        _prefetch_later(b, j, later, rows, nb_rows, lines, locality)


@intrinsic_from_ir(literals=3)
def widen_values(
    b: Value, kind: int, split: int, locality: int, values: Value, nb: Value, cells: Value,
    d: Value, n_steps: Value, panel: Value, later: Value, rows: Value, nb_rows: Value, lines: Value,
) -> None:  # fmt: skip
    """Convert columns d to d + 63 of the values in 32 ``n_steps`` cells, at most 128.

    d is a multiple of 32. For each cell prefetches ``lines`` lines of ``rows[later[j]]``.
    """
    first = item_at(b, values, b.udiv(d, const(STEP)), _step_bytes(kind))

    def row(j: Value) -> list[list[Value]]:
        """The columns of a cell, 16 each."""
        value = item_at(b, first, load(b, item_at(b, cells, j, 8), i64, 8), nb)
        _prefetch_later(b, j, later, rows, nb_rows, lines, locality)
        blocks = [at(b, value, _step_bytes(kind) * i) for i in range(VALUE_COLUMNS // STEP)]
        return [
            _sixteen(b, kind, block, e, of_block)
            for block, of_block in [(block, scales(b, kind, block)) for block in blocks]
            for e in (0, GROUP)
        ]

    if not split:
        with for_range(b, times(b, n_steps, STEP)) as j:
            out = pointer(b, item_at(b, panel, j, _VALUE_ROW))
            _store_all(b, [x for columns in row(j) for x in columns], out)
        return
    with for_range(b, n_steps) as i, for_range(b, const(GROUP)) as r:
        out = item_at(b, item_at(b, panel, i, _GROUPS * 2 * _TILE), r, LINE)
        out, j = pointer(b, out), b.add(times(b, i, STEP), r)
        pairs = zip(row(j), row(b.add(j, const(GROUP))), strict=True)
        for g, ((x,), (y,)) in enumerate(pairs):
            parts = _split(b, kind, x, y)
            for part, offset in zip(parts, (0, _TILE), strict=True):
                store(b, part, at(b, out, 2 * _TILE * g + offset))


def _starts(b: Value, add: Value, places: list[Value], lanes: int) -> list[Value]:
    """The sums in memory where ``add`` is not 0, else zeros."""
    zeros = [splat(f32, lanes, 0.0)] * len(places)
    known = b.icmp_signed("!=", add, const(0))
    return when(b, known, zeros, lambda _: [load(b, x, vec(f32, lanes)) for x in places])


@intrinsic_from_ir(literals=1)
def score_tile(
    b: Value, split: int, panel: Value, q: Value, n_steps: Value, scores: Value, stride: Value,
    add: Value,
) -> None:  # fmt: skip
    """Scores of 16 query rows and the 64 cells of a panel; added to those in memory if ``add``.

    Those of cell i are the line ``scores + i % 16 * stride + i // 16 * 64``.
    """
    if split:
        outs = [at(b, scores, LINE * g) for g in range(_GROUPS)]
        _multiply_tiles(b, panel, q, const(LINE), 2 * _TILE, _TILE, n_steps, outs, stride, add, 1)
        return
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


@intrinsic_from_ir(literals=1)
def sum_tile(
    b: Value, split: int, panel: Value, p: Value, p_stride: Value, n_steps: Value, out: Value,
    out_stride: Value, add: Value,
) -> None:  # fmt: skip
    """Weighted sums of the 64 columns of a panel for 16 rows; added to those in memory if ``add``.

    The weights of a row are 32 ``n_steps`` floats, or what ``split_weights`` made of them.
    """
    if split:
        outs = [at(b, out, LINE * g) for g in range(_GROUPS)]
        _multiply_tiles(b, panel, p, p_stride, 2 * LINE, LINE, n_steps, outs, out_stride, add, 0)
        return
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


def _multiply_tiles(
    b: Value, panel: Value, rows: Value, rows_stride: Value, step: int, low: int, n_steps: Value,
    outs: list[Value], out_stride: Value, add: Value, panel_first: int,
) -> None:  # fmt: skip
    """Multiply the four tiles of each step of a panel by one of ``rows``, with AMX.

    Args:
        rows: the high parts of a step; the low ones are ``low`` bytes after them, the next step
            ``step`` bytes.
        panel_first: whether the panel is the first factor: its rows are rows of the result.
    """
    v: Any = vectors()

    def tile(address: Value) -> Value:
        return b.inttoptr(address, i8.as_pointer())

    def multiply(sums: int) -> None:
        factors = (_PANEL, _ROWS) if panel_first else (_ROWS, _PANEL)
        v.multiply_float_tiles(b, sums, *factors)

    line = const(LINE)
    for first in range(0, _GROUPS, _SUMS):
        places = outs[first : first + _SUMS]
        with b.if_else(b.icmp_signed("!=", add, const(0))) as (more, begin):
            with more:
                for g, place in enumerate(places):
                    v.load_tile(b, g, tile(place), out_stride)
            with begin:
                for g in range(_SUMS):
                    v.zero_tile(b, g)
        with for_range(b, n_steps) as i:
            mine, other = item_at(b, panel, i, _GROUPS * 2 * _TILE), item_at(b, rows, i, step)
            mine = at(b, mine, 2 * _TILE * first)
            for of_rows, of_panel in ((0, (0, _TILE)), (low, (0,))):
                v.load_tile(b, _ROWS, tile(at(b, other, of_rows)), rows_stride)
                for part in of_panel:
                    for g in range(_SUMS):
                        v.load_tile(b, _PANEL, tile(at(b, mine, 2 * _TILE * g + part)), line)
                        multiply(g)
        for g, place in enumerate(places):
            v.store_tile(b, g, tile(place), out_stride)
