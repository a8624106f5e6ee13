"""Attention's inner loops: Q*K and P*V, of cells in the cache or of packed chunks of them.

    attn_qk(F16, 3, 0, q, q_stride, keys, nb, cells, n, d, scores, s_stride, ...)  # few rows
    attn_qk_packed(q, q_stride, packed_keys, d, n, scores, s_stride)               # six rows

A score is eight partial sums (element i goes to sum i % 8, in order), added as (0+4 + 2+6) +
(1+5 + 3+7): one form adds them across a register, the other across keys, with equal bits.
``cells`` is int64[n], the row of each key.
Access: rows of keys and values front to back, once for all query rows of a call. The elements after
the last whole vector are read with the last eight of the row, never past its end.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .....compiler.jit import intrinsic_from_ir
from .....rounding import ceil_div
from ..isa import fma, vectors
from ..kv_row import BLOCK, BLOCK_BYTES, BLOCKS, LANES, load_8, load_twice, scales
from ..vector import (
    LINE,
    at,
    broadcast,
    broadcast_f32,
    call,
    concat,
    const,
    counted_loop,
    f32,
    for_range,
    i64,
    item_at,
    lanes_of,
    load,
    prefetch_lines,
    splat,
    store,
    times,
    vec,
    zeroed_stack,
)
from .rows_later import RowsLater

Value = Any
_VECTORS = 4  # vectors of keys at a time
# The keys in the two halves of each register of 16 lanes; then the scores are in order.
_PAIRS = ((0, 2), (4, 6), (1, 3), (5, 7))
TILE_ROWS = 6  # query rows of a tile of packed keys or values
_ROWS = 3  # query rows whose sums fit 16 registers, with four vectors of keys or values


def _pairs() -> bool:
    """Whether a register holds eight elements of two keys, or sixteen of a value."""
    return vectors().width == LINE


def _rows_of_a_pass(n_rows: int) -> int:
    if _pairs():
        return ceil_div(n_rows, ceil_div(n_rows, TILE_ROWS))
    return n_rows if n_rows <= _ROWS else ceil_div(n_rows, 2)


def _totals(b: Value, x: list[Value]) -> Value:
    """The scores of four registers of eight partial sums, added in the module's order."""

    def add(u: Value, v: Value, *lanes: tuple[int, ...]) -> Value:
        """The sum of two selections from the lanes of u and v."""
        return b.fadd(*(lanes_of(b, u, v, n) for n in lanes))

    if _pairs():
        low = (*range(4), *range(8, 12), *range(16, 20), *range(24, 28))
        high = tuple(lane + 4 for lane in low)
        fours = [add(x[k], x[k + 1], low, high) for k in (0, 2)]
        even = tuple(first + lane for first in range(0, 16, 4) for lane in (0, 1, 16, 17))
        twos = add(*fours, even, tuple(lane + 2 for lane in even))
        return add(twos, twos, tuple(range(0, 16, 2)), tuple(range(1, 16, 2)))
    fours = [
        add(x[k], x[k + 1], (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))
        for k in (0, 2)
    ]
    twos = add(*fours, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15))
    return add(twos, twos, (0, 4, 2, 6), (1, 5, 3, 7))


@intrinsic_from_ir(literals=4)
def attn_qk(
    b: Value, kind: int, n_rows: int, n_tail: int, locality: int, q: Value, q_stride: Value,
    keys: Value, nb: Value, cells: Value, n: Value, d: Value, scores: Value, s_stride: Value,
    values: Value, nb_v: Value, lines: Value,
) -> None:  # fmt: skip
    """Store the scores of ``n_rows`` queries and ``n`` keys in cells of the cache.

    Rows have ``d`` >= 8 elements, ``n_tail`` is d % 8, and zeros follow a query up to a multiple of
    8. Scores are written, and cells read, up to a multiple of 8. The first ``lines`` cache lines of
    each key's values are prefetched, which are read next.
    """
    columns = max(LANES, BLOCK[kind])  # of a step
    step = columns // BLOCK[kind] * BLOCK_BYTES[kind]
    n_keys = _VECTORS * (2 if _pairs() else 1)  # that are scored at a time
    steps = b.udiv(d, const(columns))
    at_once = kind in BLOCKS  # these are bound by instructions, and code in the loop costs more
    share = const(n_keys << 16) if at_once else b.udiv(const(n_keys << 16), steps)
    share = b.select(b.icmp_signed(">", lines, const(0)), share, const(0))
    queries = [item_at(b, q, r, q_stride) for r in range(n_rows)]
    per_pass = _rows_of_a_pass(n_rows)

    def of_keys(x: list[Value]) -> list[Value]:
        """Vectors of eight, one for each key, in registers."""
        return [concat(b, [x[i], x[j]]) for i, j in _PAIRS] if _pairs() else x

    def of_queries(x: list[Value]) -> list[Value]:
        return [concat(b, [y, y]) for y in x] if _pairs() else x

    rounded = b.add(n, const(n_keys - 1))
    with for_range(b, b.udiv(rounded, const(n_keys))) as j:
        place = item_at(b, cells, j, 8 * n_keys)
        listed = [load(b, at(b, place, 8 * i), i64, 8) for i in range(n_keys)]
        key = [item_at(b, keys, cell, nb) for cell in listed]
        first_later = const(0) if at_once else times(b, j, n_keys)
        later = RowsLater(cells, n, first_later, share, values, nb_v, lines, locality)
        if at_once:
            later.prefetch(b, j)
        for first in range(0, n_rows, per_pass):
            some = queries[first : first + per_pass]

            def body(
                i: Value, accs: list[Value], first: int = first, some: list[Value] = some,
                key: list[Value] = key, later: RowsLater = later,
            ) -> list[Value]:  # fmt: skip
                if not first and not at_once:
                    later.prefetch(b, i)
                offset = times(b, i, 4 * columns)
                blocks = [item_at(b, k, i, step) for k in key]
                of_blocks = [scales(b, kind, x) for x in blocks]
                after = list(accs)
                for e in range(0, columns, LANES):
                    places = [at(b, b.add(x, offset), 4 * e) for x in some]
                    q = of_queries([load(b, x, vec(f32, LANES)) for x in places])
                    eights = [(x, e, y) for x, y in zip(blocks, of_blocks, strict=True)]
                    for c in range(_VECTORS):
                        if _pairs():
                            k = load_twice(b, kind, [eights[h] for h in _PAIRS[c]])
                        else:
                            k = load_8(b, kind, *eights[c])
                        for r in range(len(some)):
                            place = r * _VECTORS + c
                            after[place] = fma(b, q[r], k, after[place])
                return after

            zeros = [splat(f32, 2 * LANES if _pairs() else LANES, 0.0)]
            sums = counted_loop(b, steps, zeros * (len(some) * _VECTORS), body)
            if n_tail:
                ends = of_keys([_end(b, kind, k, d, n_tail) for k in key])
                places = [item_at(b, x, steps, 4 * columns) for x in some]
                parts = of_queries([load(b, x, vec(f32, LANES)) for x in places])
                products = [(x, end) for x in parts for end in ends]
                sums = [fma(b, x, y, z) for (x, y), z in zip(products, sums, strict=True)]
            for r in range(len(some)):
                out = item_at(b, scores, first + r, s_stride)
                total = _totals(b, sums[r * _VECTORS : (r + 1) * _VECTORS])
                store(b, total, item_at(b, out, j, 4 * n_keys))


@intrinsic_from_ir
def prefetch_cells(b: Value, rows: Value, nb: Value, cells: Value, n: Value, lines: Value) -> None:
    """Prefetch the first ``lines`` cache lines of the rows in ``n`` cells."""

    with for_range(b, n) as j:
        cell = load(b, item_at(b, cells, j, 8), i64, 8)
        prefetch_lines(b, item_at(b, rows, cell, nb), lines)


def _end(b: Value, kind: int, row: Value, d: Value, n_tail: int) -> Value:
    """The last ``n_tail`` elements of a row of floats, ``d`` long, and zeros."""
    last = item_at(b, row, b.sub(d, const(LANES)), BLOCK_BYTES[kind])
    lanes = [*range(LANES - n_tail, LANES), *[LANES] * (LANES - n_tail)]
    return lanes_of(b, load_8(b, kind, last, 0, []), splat(f32, LANES, 0.0), lanes)


@intrinsic_from_ir
def attn_qk_packed(
    b: Value, q: Value, q_stride: Value, keys: Value, d: Value, n: Value, scores: Value,
    s_stride: Value,
) -> None:  # fmt: skip
    """Store the scores of ``TILE_ROWS`` queries and ``n`` packed keys, ``keys[n/16][d][16]``.

    Columns of queries and keys are in the order of ``packed_column``. Scores are written up to a
    multiple of 64; those after the last key are undefined.
    """
    queries = [item_at(b, q, r, q_stride) for r in range(TILE_ROWS)]
    outs = [item_at(b, scores, r, s_stride) for r in range(TILE_ROWS)]
    n_groups, n_partial = _at_once()
    width = n_groups // n_partial

    count = b.udiv(b.add(n, const(16 * width - 1)), const(16 * width))
    with for_range(b, count) as i:
        numbers = [b.add(times(b, i, width), const(k)) for k in range(width)]
        groups = [item_at(b, keys, d, times(b, k, 64)) for k in numbers]
        places = [[item_at(b, out, k, 64) for k in numbers] for out in outs]
        for parts in _parts(width):
            _score_parts(b, queries, groups, d, places, parts)


def _at_once() -> tuple[int, int]:
    """Groups of 16 floats, and partial sums of a score, that a tile computes at a time.

    AVX-512 has registers for more than one.
    """
    return (4, 2) if _pairs() else (1, 1)


def _parts(width: int) -> list[range]:
    """The parts of ``width`` groups whose sums fit registers: 24 of 32, or 12 of 16."""
    v = vectors()
    n_sums = 24 if v.width == LINE else max(12, v.float_sums)
    return v.part_groups(TILE_ROWS * width, v.parts, n_sums)


def _score_parts(
    b: Value, queries: list[Value], keys: list[Value], d: Value, outs: list[list[Value]],
    parts: range,
) -> None:  # fmt: skip
    """Compute the eight partial sums one or two at a time, each along a stretch of columns.

    A binary counter in memory adds them pairwise: after n stretches its level l holds the total of
    2^l stretches if bit l of n is set. LLVM would spill registers, to unaligned addresses.
    """
    lanes, n_sums = vectors().lanes, len(queries) * len(keys) * len(parts)
    _, n_partial = _at_once()
    top = (LANES // n_partial).bit_length() - 1  # the level of the whole sum
    steps, size = b.lshr(d, const(3)), LINE * n_sums
    counter = zeroed_stack(b, (top + 1) * size)

    def held(level: Value) -> list[Value]:
        """The addresses of a level's sums."""
        start = item_at(b, counter, level, size)
        return [at(b, start, LINE * i) for i in range(n_sums)]

    with for_range(b, const(LANES // n_partial)) as k:
        first = b.mul(k, times(b, steps, n_partial))

        def body(i: Value, accs: list[Value]) -> list[Value]:
            products = []
            for c in range(n_partial):
                column = b.add(item_at(b, first, c, steps), i)
                rows = [item_at(b, group, column, 64) for group in keys]
                places = [at(b, row, 4 * lanes * p) for row in rows for p in parts]
                loaded = [load(b, place, vec(f32, lanes)) for place in places]
                places = [item_at(b, q, column, 4) for q in queries]
                xs = [broadcast_f32(b, place, lanes) for place in places]
                products += [(x, part) for x in xs for part in loaded]
            return [fma(b, x, part, acc) for (x, part), acc in zip(products, accs, strict=True)]

        sums = counted_loop(b, steps, [splat(f32, lanes, 0.0)] * (n_sums * n_partial), body)
        if n_partial == 2:
            halves = zip(sums[:n_sums], sums[n_sums:], strict=True)
            sums = [b.fadd(x, y) for x, y in halves]

        def carry(level: Value, sums: list[Value]) -> list[Value]:
            before = [load(b, x, vec(f32, lanes), LINE) for x in held(level)]
            return [b.fadd(x, y) for x, y in zip(before, sums, strict=True)]

        n_made = b.add(k, const(1))
        level = call(b, "llvm.cttz.i64", i64, n_made, ir.Constant(ir.IntType(1), 0))
        sums = counted_loop(b, level, sums, carry)
        for x, place in zip(sums, held(level), strict=True):
            store(b, x, place, LINE)
    places = [at(b, out, 4 * lanes * p) for row in outs for out in row for p in parts]
    for total, place in zip(held(const(top)), places, strict=True):
        store(b, load(b, total, vec(f32, lanes), LINE), place)


@intrinsic_from_ir
def attn_pv_packed(
    b: Value, p: Value, p_stride: Value, values: Value, v_stride: Value, n: Value, out: Value,
    out_stride: Value, d: Value,
) -> None:  # fmt: skip
    """``out[r][0:d] = sum over j < n of p[r][j] * values[0:d][j]``, in order of j.

    For ``TILE_ROWS`` rows r. Packed values are ``values[d/16][n][16]``, with ``v_stride`` bytes
    from 16 columns to the next.
    """
    lanes = vectors().lanes
    weights = [item_at(b, p, r, p_stride) for r in range(TILE_ROWS)]

    def tile(first: Value, width: int) -> None:
        for parts in _parts(width):
            some(first, [(k, p) for k in range(width) for p in parts])

    def some(first: Value, vectors_of: list[tuple[int, int]]) -> None:
        """Compute some parts of groups of 16 columns, each (group, part)."""
        start = item_at(b, values, first, v_stride)
        starts = [item_at(b, start, k, v_stride) for k, _ in vectors_of]

        def body(j: Value, accs: list[Value]) -> list[Value]:
            offset = times(b, j, 64)
            loaded = [
                load(b, at(b, b.add(start, offset), 4 * lanes * p), vec(f32, lanes))
                for start, (_, p) in zip(starts, vectors_of, strict=True)
            ]
            xs = [broadcast_f32(b, item_at(b, w, j, 4), lanes) for w in weights]
            products = [(part, x) for x in xs for part in loaded]
            return [fma(b, y, x, acc) for (y, x), acc in zip(products, accs, strict=True)]

        zeros = [splat(f32, lanes, 0.0)] * (TILE_ROWS * len(vectors_of))
        sums = counted_loop(b, n, zeros, body)
        rows = [item_at(b, out, r, out_stride) for r in range(TILE_ROWS)]
        rows = [item_at(b, row, first, 64) for row in rows]
        places = [at(b, row, 64 * k + 4 * lanes * p) for row in rows for k, p in vectors_of]
        for acc, place in zip(sums, places, strict=True):
            store(b, acc, place)

    (width, _), groups = _at_once(), b.lshr(d, const(4))
    count = b.udiv(groups, const(width))
    done = times(b, count, width)
    with for_range(b, count) as i:
        tile(times(b, i, width), width)
    if width > 1:
        with for_range(b, b.sub(groups, done)) as i:
            tile(b.add(i, done), 1)


@intrinsic_from_ir(literals=4)
def attn_pv(
    b: Value, kind: int, n_rows: int, n_columns: int, locality: int, p: Value, p_stride: Value,
    values: Value, nb: Value, cells: Value, n: Value, out: Value, out_stride: Value, later: Value,
    keys: Value, nb_k: Value, lines: Value, first_later: Value, share: Value,
) -> None:  # fmt: skip
    """``out[r][0:d] = sum over j < n of p[r][j] * values[cells[j]][0:d]``, in order of j.

    d is ``n_columns``, ``pv_columns`` or a multiple of 8 up to 32. Prefetches ``lines`` cache lines
    of keys in the cells ``later``, which are read next: with each value ``share`` / 2^16 keys, from
    key ``first_later`` on.
    """
    weights = [item_at(b, p, r, p_stride) for r in range(n_rows)]
    keys_later = RowsLater(later, n, first_later, share, keys, nb_k, lines, locality)
    size = 2 * LANES if _pairs() else LANES
    parts = [(e, min(size, n_columns - e)) for e in range(0, n_columns, size)]
    per_pass = max(1, len(parts) if _rows_of_a_pass(n_rows) == n_rows else ceil_div(len(parts), 2))
    for first in range(0, len(parts), per_pass):
        some = parts[first : first + per_pass]

        def body(
            j: Value, accs: list[Value], first: int = first,
            some: list[tuple[int, int]] = some,
        ) -> list[Value]:  # fmt: skip
            cell = load(b, item_at(b, cells, j, 8), i64, 8)
            row = item_at(b, values, cell, nb)
            if not first:
                keys_later.prefetch(b, j)
            w = [load(b, item_at(b, x, j, 4), f32) for x in weights]
            blocks = [at(b, row, BLOCK_BYTES[kind] * k) for k in range(ceil_div(n_columns, 32))]
            of_blocks = [scales(b, kind, x) for x in blocks]

            def eight(e: int) -> tuple[Value, int, list[Value]]:
                if kind not in BLOCKS:
                    return row, e, []
                return blocks[e // 32], e % 32, of_blocks[e // 32]

            after = []
            for e, lanes in some:  # one vector at a time: more would not fit registers
                if lanes > LANES:
                    part = load_twice(b, kind, [eight(e), eight(e + LANES)])
                else:
                    part = load_8(b, kind, *eight(e))
                for x in w:
                    acc = accs[len(after)]
                    after.append(fma(b, part, broadcast(b, x, lanes), acc))
            return after

        zeros = [splat(f32, lanes, 0.0) for _, lanes in some for _ in weights]
        sums = iter(counted_loop(b, n, zeros, body))
        for e, _ in some:
            for r in range(n_rows):
                place = item_at(b, out, r, out_stride)
                store(b, next(sums), at(b, place, 4 * e))


def pv_columns(d: int) -> int:
    """The best number of columns for a call of ``attn_pv``, of values of ``d`` elements."""
    return 64 if _pairs() and d % 64 == 0 else 32
