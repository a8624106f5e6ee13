"""Attention's inner loops: scores and weighted values, straight from cells or from packed chunks.

    score_cells(F16, 3, 0, q, q_stride, keys, nb, cells, n, d, scores, s_stride, ...)  # few rows
    score_packed(q, q_stride, packed_keys, d, n, scores, s_stride)               # six rows

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
from numba.core import cgutils
from numba.extending import intrinsic

from .kv_row import BLOCK, BLOCK_BYTES, LANES, load_8, scales
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
_AHEAD = 32  # keys between those in use and those that are fetched: cells may lie anywhere
_AHEAD_LINES = 2  # of each: the rest follows by itself
_KEYS = 4  # keys that are scored at a time
TILE_ROWS = 6  # query rows of a tile of packed keys or values
_ROWS = 3  # query rows that one pass keeps in registers, with four keys or vectors of values


def _totals(b: Value, x: list[Value]) -> Value:
    """The sums of four registers, each of its eight partial sums in the order of the module."""

    def add(u: Value, v: Value, *lanes: tuple[int, ...]) -> Value:
        """The sum of two choices from the lanes of u and v."""
        return b.fadd(*(b.shuffle_vector(u, v, ir.Constant(vec(i32, len(n)), n)) for n in lanes))

    fours = [
        add(x[k], x[k + 1], (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))
        for k in (0, 2)
    ]
    twos = add(*fours, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15))
    return add(twos, twos, (0, 4, 2, 6), (1, 5, 3, 7))


def _scaled(b: Value, i: Value, factor: int | Value) -> Value:
    return b.mul(i, ir.Constant(i64, factor) if isinstance(factor, int) else factor)


@intrinsic(prefer_literal=True)
def score_cells(
    typingctx: Any, fmt: Any, rows: Any, tail: Any, q: Any, q_stride: Any, keys: Any, nb: Any,
    cells: Any, n: Any, d: Any, scores: Any, s_stride: Any, values: Any, nb_v: Any, lines: Any,
) -> Any:  # fmt: skip
    """Scores of ``rows`` queries (a literal) against ``n`` keys where they lie in the cache.

    Rows are ``d`` >= 8 long, ``tail`` (a literal) is d % 8, and queries have zeros up to a multiple
    of 8. Four keys at a time: ``scores`` go on to the next multiple of four, and memory may be read
    ``_AHEAD`` behind ``cells``. Keys that lie ahead are asked of memory, and the first ``lines``
    cache lines of each key's row of values, which are wanted next.
    """
    literals = literals_of(fmt, rows, tail)
    if literals is None:
        return None
    kind, n_rows, n_tail = literals
    columns = max(LANES, BLOCK[kind])  # of a step
    step = columns // BLOCK[kind] * BLOCK_BYTES[kind]

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        q, q_stride, keys, nb, cells, n, d, scores, s_stride, values, nb_v, lines = args[3:]
        steps = b.udiv(d, ir.Constant(i64, columns))
        queries = [b.add(q, _scaled(b, q_stride, r)) for r in range(n_rows)]
        per_pass = n_rows if n_rows <= _ROWS else -(-n_rows // 2)

        def four_keys(j: Value, _: list[Value]) -> list[Value]:
            key = []
            for i in range(_KEYS):
                cell = load(b, at(b, b.add(cells, _scaled(b, j, 8 * _KEYS)), 8 * i), i64, 8)
                key.append(b.add(keys, b.mul(cell, nb)))
                value = b.add(values, b.mul(cell, nb_v))

                def fetch(line: Value, _: list[Value], value: Value = value) -> list[Value]:
                    prefetch(b, b.add(value, _scaled(b, line, LINE)))
                    return []

                counted_loop(b, lines, [], fetch)
                place = at(b, b.add(cells, _scaled(b, j, 8 * _KEYS)), 8 * (i + _AHEAD))
                later = b.add(keys, b.mul(load(b, place, i64, 8), nb))
                for line in range(_AHEAD_LINES):
                    prefetch(b, at(b, later, LINE * line))
            for first in range(0, n_rows, per_pass):
                some = queries[first : first + per_pass]

                def body(i: Value, accs: list[Value], some: list[Value] = some) -> list[Value]:
                    offset = _scaled(b, i, 4 * columns)
                    blocks = [b.add(k, _scaled(b, i, step)) for k in key]
                    of_blocks = [scales(b, kind, x) for x in blocks]
                    after = list(accs)
                    for e in range(0, columns, LANES):
                        places = [at(b, b.add(x, offset), 4 * e) for x in some]
                        q = [load(b, x, vec(f32, LANES)) for x in places]
                        for c in range(_KEYS):
                            k = load_8(b, kind, blocks[c], e, of_blocks[c])
                            for r in range(len(some)):
                                after[r * _KEYS + c] = fma(b, q[r], k, after[r * _KEYS + c])
                    return after

                zeros = [splat(f32, LANES, 0.0)] * (len(some) * _KEYS)
                sums = counted_loop(b, steps, zeros, body)
                if n_tail:
                    ends = [_end(b, kind, k, d, n_tail) for k in key]
                    places = [b.add(x, _scaled(b, steps, 4 * columns)) for x in some]
                    parts = [load(b, x, vec(f32, LANES)) for x in places]
                    sums = [fma(b, x, end, sums[r * _KEYS + c])
                            for r, x in enumerate(parts) for c, end in enumerate(ends)]  # fmt: skip
                for r in range(len(some)):
                    place = b.add(scores, _scaled(b, s_stride, first + r))
                    total = _totals(b, sums[r * _KEYS : (r + 1) * _KEYS])
                    store(b, total, b.add(place, _scaled(b, j, 4 * _KEYS)))
            return []

        rounded = b.add(n, ir.Constant(i64, _KEYS - 1))
        counted_loop(b, b.udiv(rounded, ir.Constant(i64, _KEYS)), [], four_keys)
        return context.get_dummy_value()

    return types.void(fmt, rows, tail, *[types.int64] * 12), codegen


def _end(b: Value, kind: int, row: Value, d: Value, n_tail: int) -> Value:
    """The last ``n_tail`` elements of a row of floats, ``d`` long, and zeros."""
    last = b.add(row, _scaled(b, b.sub(d, ir.Constant(i64, LANES)), BLOCK_BYTES[kind]))
    lanes = [*range(LANES - n_tail, LANES), *[LANES] * (LANES - n_tail)]
    zeros, mask = splat(f32, LANES, 0.0), ir.Constant(vec(i32, LANES), lanes)
    return b.shuffle_vector(load_8(b, kind, last, 0, []), zeros, mask)


@intrinsic
def score_packed(
    typingctx: Any, q: Any, q_stride: Any, keys: Any, d: Any, n: Any, scores: Any, s_stride: Any
) -> Any:
    """Scores of ``TILE_ROWS`` queries against ``n`` packed keys, ``keys[n/16][d][16]``.

    The columns d of queries and keys lie in the order of ``stretched``. Scores go on to the next
    multiple of 64.
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

    def held(level: int | Value) -> list[Value]:
        """The places of a level's sums."""
        start = b.add(counter, _scaled(b, ir.Constant(i64, size), level))
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

        whole = ir.Constant(ir.IntType(1), 0)
        level = call(b, "llvm.cttz.i64", i64, b.add(k, ir.Constant(i64, 1)), whole)
        sums = counted_loop(b, level, sums, carry)
        for x, place in zip(sums, held(level), strict=True):
            store(b, x, place, LINE)
        return []

    counted_loop(b, ir.Constant(i64, LANES // together), [], stretch)
    places = [at(b, out, 4 * lanes * p) for row in outs for out in row for p in parts]
    for total, place in zip(held(top), places, strict=True):
        store(b, load(b, total, vec(f32, lanes), LINE), place)


@intrinsic
def weigh_packed(
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
def weigh_cells(
    typingctx: Any, fmt: Any, rows: Any, columns: Any, p: Any, p_stride: Any, values: Any, nb: Any,
    cells: Any, n: Any, out: Any, out_stride: Any, later: Any, keys: Any, nb_k: Any,
) -> Any:  # fmt: skip
    """``out[r][0:d] = sum over j < n of p[r][j] * values[cells[j]][0:d]``, in order of j.

    ``rows`` and d = ``columns``, a multiple of 8 from 0 to 32, are literals. Meanwhile a line of
    ``keys[later[j]]`` is asked of memory, which is wanted next.
    """
    literals = literals_of(fmt, rows, columns)
    if literals is None:
        return None
    kind, n_rows, n_columns = literals
    n_parts = n_columns // LANES
    per_pass = max(1, n_parts if n_rows <= _ROWS else (n_parts + 1) // 2)

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        p, p_stride, values, nb, cells, n, out, out_stride, later, keys, nb_k = args[3:]
        weights = [b.add(p, _scaled(b, p_stride, r)) for r in range(n_rows)]
        for first in range(0, n_parts, per_pass):
            count = min(per_pass, n_parts - first)

            def body(
                j: Value, accs: list[Value], first: int = first, count: int = count
            ) -> list[Value]:
                cell = load(b, b.add(cells, _scaled(b, j, 8)), i64, 8)
                row = b.add(values, b.mul(cell, nb))
                if not first:
                    coming = load(b, b.add(later, _scaled(b, j, 8)), i64, 8)
                    prefetch(b, b.add(keys, b.mul(coming, nb_k)))
                at_j = [load(b, b.add(x, _scaled(b, j, 4)), f32) for x in weights]
                w = [broadcast(b, x, LANES) for x in at_j]
                of_block = scales(b, kind, row)
                after = list(accs)
                for i in range(count):  # one vector at a time: more would not fit registers
                    part = load_8(b, kind, row, LANES * (first + i), of_block)
                    for r in range(n_rows):
                        k = r * count + i
                        after[k] = fma(b, part, w[r], accs[k])
                return after

            sums = counted_loop(b, n, [splat(f32, LANES, 0.0)] * (n_rows * count), body)
            for k, acc in enumerate(sums):
                r, i = divmod(k, count)
                place = b.add(out, _scaled(b, out_stride, r))
                store(b, acc, at(b, place, 4 * LANES * (first + i)))
        return context.get_dummy_value()

    return types.void(fmt, rows, columns, *[types.int64] * 11), codegen
