"""Attention's inner loops: scores and weighted values, straight from cells or from packed chunks.

    attn_qk(F16, 3, 0, q, q_stride, keys, nb, cells, n, d, scores, s_stride, ...)  # few rows
    qk_packed(q, q_stride, packed_keys, d, n, scores, s_stride)                  # six rows

A score is eight partial sums (element i goes to sum i % 8, in order), added as (0+4 + 2+6) +
(1+5 + 3+7): the one form does it across a register, the other across keys, and the bits are equal.
``cells`` is int64[n], the row of each key.
Access: rows of keys and values front to back, once for all query rows of a call. What is left of a
row behind whole vectors is read with its last eight elements, so nothing behind a row is.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....numba_internals import cgutils
from .kv_row import BLOCK, BLOCK_BYTES, CODES, LANES, joined, load_8, load_twice, scales
from .loop import counted_loop, literals_of
from .vector import (
    LINE,
    at,
    broadcast,
    call,
    f32,
    fma,
    i8,
    i32,
    i64,
    load,
    prefetch,
    splat,
    store,
    vec,
    vectors,
)

Value = Any
MAX_AHEAD = 64  # keys between those in use and those that are prefetched: cells may lie anywhere
_AHEAD_LINES = 2  # of each: the rest follows by itself
_VECTORS = 4  # of keys that are scored at a time
# The keys in the halves of registers of 16 lanes: so they come out in order.
_PAIRS = ((0, 2), (4, 6), (1, 3), (5, 7))
TILE_ROWS = 6  # query rows of a tile of packed keys or values
_ROWS = 3  # query rows that 16 registers have room for, with four vectors of keys or values


def _pairs() -> bool:
    """Whether registers have room for eight elements of two keys, or sixteen of a value."""
    return vectors().width == LINE


def _rows_of_a_pass(n_rows: int) -> int:
    return n_rows if n_rows <= _ROWS or _pairs() else -(-n_rows // 2)


def _totals(b: Value, x: list[Value]) -> Value:
    """The sums of four registers, each of its eight partial sums in the order of the module."""

    def add(u: Value, v: Value, *lanes: tuple[int, ...]) -> Value:
        """The sum of two choices from the lanes of u and v."""
        return b.fadd(*(b.shuffle_vector(u, v, ir.Constant(vec(i32, len(n)), n)) for n in lanes))

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


def _scaled(b: Value, i: Value, factor: int | Value) -> Value:
    return b.mul(i, ir.Constant(i64, factor) if isinstance(factor, int) else factor)


@intrinsic(prefer_literal=True)
def attn_qk(
    typingctx: Any, fmt: Any, rows: Any, tail: Any, hint: Any, q: Any, q_stride: Any, keys: Any,
    nb: Any, cells: Any, n: Any, d: Any, scores: Any, s_stride: Any, values: Any, nb_v: Any,
    lines: Any, ahead: Any,
) -> Any:  # fmt: skip
    """Scores of ``rows`` queries (a literal) against ``n`` keys where they lie in the cache.

    Rows are ``d`` >= 8 long, ``tail`` (a literal) is d % 8, and queries have zeros up to a multiple
    of 8. ``scores`` are written up to a multiple of 8, and cells read up to ``ahead`` after that.
    Keys that lie ahead are prefetched, and the first ``lines`` cache lines of each key's values,
    which are read next.
    """
    literals = literals_of(fmt, rows, tail, hint)
    if literals is None:
        return None
    kind, n_rows, n_tail, locality = literals
    columns = max(LANES, BLOCK[kind])  # of a step
    step = columns // BLOCK[kind] * BLOCK_BYTES[kind]
    n_keys = _VECTORS * (2 if _pairs() else 1)  # that are scored at a time

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        q, q_stride, keys, nb, cells, n, d, scores, s_stride, values, nb_v, lines, ahead = args[4:]
        steps = b.udiv(d, ir.Constant(i64, columns))
        queries = [b.add(q, _scaled(b, q_stride, r)) for r in range(n_rows)]
        per_pass = _rows_of_a_pass(n_rows)

        def of_keys(x: list[Value]) -> list[Value]:
            """A vector of eight for each key as registers."""
            return [joined(b, x[i], x[j]) for i, j in _PAIRS] if _pairs() else x

        def of_queries(x: list[Value]) -> list[Value]:
            return [joined(b, y, y) for y in x] if _pairs() else x

        def some_keys(j: Value, _: list[Value]) -> list[Value]:
            key, value = [], []
            place = b.add(cells, _scaled(b, j, 8 * n_keys))
            for i in range(n_keys):
                cell = load(b, at(b, place, 8 * i), i64, 8)
                key.append(b.add(keys, b.mul(cell, nb)))
                value.append(b.add(values, b.mul(cell, nb_v)))
                coming = load(b, at(b, b.add(place, _scaled(b, ahead, 8)), 8 * i), i64, 8)
                later = b.add(keys, b.mul(coming, nb))
                for line in range(_AHEAD_LINES):
                    prefetch(b, at(b, later, LINE * line), locality)

            def fetch(line: Value, _: list[Value]) -> list[Value]:
                for row in value:
                    prefetch(b, b.add(row, _scaled(b, line, LINE)), locality)
                return []

            counted_loop(b, lines, [], fetch)
            for first in range(0, n_rows, per_pass):
                some = queries[first : first + per_pass]

                def body(i: Value, accs: list[Value], some: list[Value] = some) -> list[Value]:
                    offset = _scaled(b, i, 4 * columns)
                    blocks = [b.add(k, _scaled(b, i, step)) for k in key]
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
                    places = [b.add(x, _scaled(b, steps, 4 * columns)) for x in some]
                    parts = of_queries([load(b, x, vec(f32, LANES)) for x in places])
                    products = [(x, end) for x in parts for end in ends]
                    sums = [fma(b, x, y, z) for (x, y), z in zip(products, sums, strict=True)]
                for r in range(len(some)):
                    out = b.add(scores, _scaled(b, s_stride, first + r))
                    total = _totals(b, sums[r * _VECTORS : (r + 1) * _VECTORS])
                    store(b, total, b.add(out, _scaled(b, j, 4 * n_keys)))
            return []

        rounded = b.add(n, ir.Constant(i64, n_keys - 1))
        counted_loop(b, b.udiv(rounded, ir.Constant(i64, n_keys)), [], some_keys)
        return context.get_dummy_value()

    return types.void(fmt, rows, tail, hint, *[types.int64] * 13), codegen


@intrinsic
def prefetch_cells(typingctx: Any, rows: Any, nb: Any, cells: Any, n: Any, lines: Any) -> Any:
    """Prefetch the first ``lines`` cache lines of the rows in ``n`` cells."""

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        rows, nb, cells, n, lines = args

        def row(j: Value, _: list[Value]) -> list[Value]:
            start = b.add(rows, b.mul(load(b, b.add(cells, _scaled(b, j, 8)), i64, 8), nb))

            def line(i: Value, _: list[Value]) -> list[Value]:
                prefetch(b, b.add(start, _scaled(b, i, LINE)))
                return []

            counted_loop(b, lines, [], line)
            return []

        counted_loop(b, n, [], row)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


def _end(b: Value, kind: int, row: Value, d: Value, n_tail: int) -> Value:
    """The last ``n_tail`` elements of a row of floats, ``d`` long, and zeros."""
    last = b.add(row, _scaled(b, b.sub(d, ir.Constant(i64, LANES)), BLOCK_BYTES[kind]))
    lanes = [*range(LANES - n_tail, LANES), *[LANES] * (LANES - n_tail)]
    zeros, mask = splat(f32, LANES, 0.0), ir.Constant(vec(i32, LANES), lanes)
    return b.shuffle_vector(load_8(b, kind, last, 0, []), zeros, mask)


@intrinsic
def qk_packed(
    typingctx: Any, q: Any, q_stride: Any, keys: Any, d: Any, n: Any, scores: Any, s_stride: Any
) -> Any:
    """Scores of ``TILE_ROWS`` queries against ``n`` packed keys, ``keys[n/16][d][16]``.

    Columns of queries and keys lie in the order of ``packed_column``. Scores are written up to a
    multiple of 64, those after the last key without meaning.
    """

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        q, q_stride, keys, d, n, scores, s_stride = args
        queries = [b.add(q, _scaled(b, q_stride, r)) for r in range(TILE_ROWS)]
        outs = [b.add(scores, _scaled(b, s_stride, r)) for r in range(TILE_ROWS)]
        width = _width() // _together()

        def tile(i: Value, _: list[Value]) -> list[Value]:
            numbers = [b.add(_scaled(b, i, width), ir.Constant(i64, k)) for k in range(width)]
            groups = [b.add(keys, b.mul(d, _scaled(b, k, 64))) for k in numbers]
            places = [[b.add(out, _scaled(b, k, 64)) for k in numbers] for out in outs]
            for parts in _parts(width):
                _score_parts(b, queries, groups, d, places, parts)
            return []

        count = b.udiv(b.add(n, ir.Constant(i64, 16 * width - 1)), ir.Constant(i64, 16 * width))
        counted_loop(b, count, [], tile)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), codegen


def _width() -> int:
    """Groups of 16 floats that a tile takes at a time: AVX-512 has registers for four."""
    return 4 if vectors().width == LINE else 1


def _together() -> int:
    """Partial sums of a score that are made at a time: the counter is used half as often."""
    return 2 if vectors().width == LINE else 1


def _parts(width: int) -> list[range]:
    """The parts of ``width`` groups whose sums fit registers: 24 of 32, or 12 of 16."""
    v = vectors()
    n_sums = 24 if v.width == LINE else max(12, v.float_sums)
    return v.part_groups(TILE_ROWS * width, v.parts, n_sums)


def _score_parts(
    b: Value, queries: list[Value], keys: list[Value], d: Value, outs: list[list[Value]],
    parts: range,
) -> None:  # fmt: skip
    """The eight partial sums one or two at a time, each along a stretch of columns.

    They are added in pairs, pairs of pairs and halves with a binary counter in memory: after n
    stretches its level l holds a total of 2^l stretches where bit l of n is set. In registers LLVM
    would spill them, to places that are not aligned.
    """
    lanes, n_sums = vectors().lanes, len(queries) * len(keys) * len(parts)
    together = _together()
    top = (LANES // together).bit_length() - 1  # the level of the whole sum
    steps, size = b.lshr(d, ir.Constant(i64, 3)), LINE * n_sums
    levels = cgutils.alloca_once(b, ir.ArrayType(i8, (top + 1) * size))
    levels.align = LINE
    counter = b.ptrtoint(levels, i64)

    def held(level: Value) -> list[Value]:
        """The places of a level's sums."""
        start = b.add(counter, _scaled(b, level, size))
        return [at(b, start, LINE * i) for i in range(n_sums)]

    def stretch(k: Value, _: list[Value]) -> list[Value]:
        first = b.mul(k, _scaled(b, steps, together))

        def body(i: Value, accs: list[Value]) -> list[Value]:
            products = []
            for c in range(together):
                column = b.add(b.add(first, _scaled(b, steps, c)), i)
                rows = [b.add(group, _scaled(b, column, 64)) for group in keys]
                places = [at(b, row, 4 * lanes * p) for row in rows for p in parts]
                loaded = [load(b, place, vec(f32, lanes)) for place in places]
                places = [b.add(q, _scaled(b, column, 4)) for q in queries]
                xs = [broadcast(b, load(b, place, f32), lanes) for place in places]
                products += [(x, part) for x in xs for part in loaded]
            return [fma(b, x, part, acc) for (x, part), acc in zip(products, accs, strict=True)]

        sums = counted_loop(b, steps, [splat(f32, lanes, 0.0)] * (n_sums * together), body)
        if together == 2:
            halves = zip(sums[:n_sums], sums[n_sums:], strict=True)
            sums = [b.fadd(x, y) for x, y in halves]

        def carry(level: Value, sums: list[Value]) -> list[Value]:
            before = [load(b, x, vec(f32, lanes), LINE) for x in held(level)]
            return [b.fadd(x, y) for x, y in zip(before, sums, strict=True)]

        n_made = b.add(k, ir.Constant(i64, 1))
        level = call(b, "llvm.cttz.i64", i64, n_made, ir.Constant(ir.IntType(1), 0))
        sums = counted_loop(b, level, sums, carry)
        for x, place in zip(sums, held(level), strict=True):
            store(b, x, place, LINE)
        return []

    counted_loop(b, ir.Constant(i64, LANES // together), [], stretch)
    places = [at(b, out, 4 * lanes * p) for row in outs for out in row for p in parts]
    for total, place in zip(held(ir.Constant(i64, top)), places, strict=True):
        store(b, load(b, total, vec(f32, lanes), LINE), place)


@intrinsic
def pv_packed(
    typingctx: Any, p: Any, p_stride: Any, values: Any, v_stride: Any, n: Any, out: Any,
    out_stride: Any, d: Any,
) -> Any:  # fmt: skip
    """``out[r][0:d] = sum over j < n of p[r][j] * values[0:d][j]``, in order of j.

    ``TILE_ROWS`` rows. 16 columns of packed values lie together, ``v_stride`` bytes from the next
    16.
    """

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        p, p_stride, values, v_stride, n, out, out_stride, d = args
        lanes = vectors().lanes
        weights = [b.add(p, _scaled(b, p_stride, r)) for r in range(TILE_ROWS)]

        def tile(first: Value, width: int) -> None:
            for parts in _parts(width):
                some(first, [(k, p) for k in range(width) for p in parts])

        def some(first: Value, vectors_of: list[tuple[int, int]]) -> None:
            """Parts of groups, each (group, part)."""
            start = b.add(values, b.mul(v_stride, first))
            starts = [b.add(start, b.mul(v_stride, ir.Constant(i64, k))) for k, _ in vectors_of]

            def body(j: Value, accs: list[Value]) -> list[Value]:
                offset = _scaled(b, j, 64)
                loaded = [
                    load(b, at(b, b.add(start, offset), 4 * lanes * p), vec(f32, lanes))
                    for start, (_, p) in zip(starts, vectors_of, strict=True)
                ]
                at_j = [load(b, b.add(w, _scaled(b, j, 4)), f32) for w in weights]
                xs = [broadcast(b, x, lanes) for x in at_j]
                products = [(part, x) for x in xs for part in loaded]
                return [fma(b, y, x, acc) for (y, x), acc in zip(products, accs, strict=True)]

            zeros = [splat(f32, lanes, 0.0)] * (TILE_ROWS * len(vectors_of))
            sums = counted_loop(b, n, zeros, body)
            rows = [b.add(out, _scaled(b, out_stride, r)) for r in range(TILE_ROWS)]
            rows = [b.add(row, _scaled(b, first, 64)) for row in rows]
            places = [at(b, row, 64 * k + 4 * lanes * p) for row in rows for k, p in vectors_of]
            for acc, place in zip(sums, places, strict=True):
                store(b, acc, place)

        width, groups = _width(), b.lshr(d, ir.Constant(i64, 4))

        def wide(i: Value, _: list[Value]) -> list[Value]:
            tile(b.mul(i, ir.Constant(i64, width)), width)
            return []

        def rest(i: Value, _: list[Value]) -> list[Value]:
            tile(b.add(i, done), 1)
            return []

        count = b.udiv(groups, ir.Constant(i64, width))
        done = b.mul(count, ir.Constant(i64, width))
        counted_loop(b, count, [], wide)
        if width > 1:
            counted_loop(b, b.sub(groups, done), [], rest)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), codegen


@intrinsic(prefer_literal=True)
def attn_pv(
    typingctx: Any, fmt: Any, rows: Any, columns: Any, hint: Any, p: Any, p_stride: Any,
    values: Any, nb: Any, cells: Any, n: Any, out: Any, out_stride: Any, later: Any, keys: Any,
    nb_k: Any,
) -> Any:  # fmt: skip
    """``out[r][0:d] = sum over j < n of p[r][j] * values[cells[j]][0:d]``, in order of j.

    ``rows`` and d = ``columns``, a multiple of 8 up to 32, or ``pv_columns``, are literals.
    Meanwhile ``keys[later[j]]``, which is read next, is prefetched: a line for 32 columns.
    """
    literals = literals_of(fmt, rows, columns, hint)
    if literals is None:
        return None
    kind, n_rows, n_columns, locality = literals

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        p, p_stride, values, nb, cells, n, out, out_stride, later, keys, nb_k = args[4:]
        weights = [b.add(p, _scaled(b, p_stride, r)) for r in range(n_rows)]
        size = 2 * LANES if _pairs() else LANES
        parts = [(e, min(size, n_columns - e)) for e in range(0, n_columns, size)]
        per_pass = max(1, len(parts) if _rows_of_a_pass(n_rows) == n_rows else -(-len(parts) // 2))
        for first in range(0, len(parts), per_pass):
            some = parts[first : first + per_pass]

            def body(
                j: Value, accs: list[Value], first: int = first,
                some: list[tuple[int, int]] = some,
            ) -> list[Value]:  # fmt: skip
                cell = load(b, b.add(cells, _scaled(b, j, 8)), i64, 8)
                row = b.add(values, b.mul(cell, nb))
                if not first:
                    coming = load(b, b.add(later, _scaled(b, j, 8)), i64, 8)
                    key = b.add(keys, b.mul(coming, nb_k))
                    for line in range(-(-n_columns // 32)):
                        prefetch(b, at(b, key, LINE * line), locality)
                w = [load(b, b.add(x, _scaled(b, j, 4)), f32) for x in weights]
                blocks = [at(b, row, BLOCK_BYTES[kind] * k) for k in range(-(-n_columns // 32))]
                of_blocks = [scales(b, kind, x) for x in blocks] if kind in CODES else []

                def eight(e: int) -> tuple[Value, int, list[Value]]:
                    if kind not in CODES:
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
                    place = b.add(out, _scaled(b, out_stride, r))
                    store(b, next(sums), at(b, place, 4 * e))
        return context.get_dummy_value()

    return types.void(fmt, rows, columns, hint, *[types.int64] * 11), codegen


def pv_columns(d: int) -> int:
    """Columns that ``attn_pv`` is best given at a time, of values ``d`` long: 32 or 64."""
    return 64 if _pairs() and d % 64 == 0 else 32
