"""Attention's inner loops on the codes of Q8_0 caches: Q*K and P*V as sums of integers.

    round_query(q, d)                                                     # of a query row, in place
    qk_codes(3, 2, q, q_stride, keys, nb, cells, n, d, scores, s_stride, ...)      # few rows
    qk_codes_packed(6, q, q_stride, packed_keys, n, d, scores, s_stride)           # many rows

A query row is rounded to 16 bits with one scale, and so are, of up to 256 cells, the products of
probabilities and scales of a block of values:

    score  = scale of the query * sum over blocks of (scale of the block * sum of 32 products)
    result = scale of the weights * sum over cells of products

Sums of integers are exact and below 2^31, so their bits depend neither on their order nor on the
instruction set. ``cells`` is int64[n], the row of each key.
Access: rows of keys and values front to back, once for all query rows of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from llvmlite import ir

from .....compiler.jit import intrinsic_from_ir
from .....dtype import GGMLType
from ..isa import fma, vectors, widen
from ..vector import (
    F16,
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
    i8,
    i16,
    i32,
    i64,
    item_at,
    lanes_of,
    load,
    splat,
    stack_memory,
    store,
    times,
    vec,
)
from .rows_later import RowsLater

Value = Any
Body = Callable[[Value, list[Value]], list[Value]]
CODES = (GGMLType.Q8_0,)  # types of caches that are read so, if keys and values have one of them
BLOCK_BYTES = GGMLType.Q8_0.type_size
_CODE = 2  # bytes of a block before its codes
_CELLS = 256  # of a chunk
_MOST = 32767  # the largest integer of a query or of weights
_TINY = 1e-30  # floats are rounded to 0 if the largest is smaller
_ROUND = 1.5 * 2.0**23  # a float plus this has the rounded float in its low 16 bits


def _groups(b: Value, n: Value) -> Value:
    """How many vectors ``n`` cells fill, a lane each."""
    lanes = vectors().lanes
    return b.udiv(b.add(n, const(lanes - 1)), const(lanes))


def _rows(b: Value, start: Value, nb: Value, cells: Value, j: Value) -> list[Value]:
    """The addresses of the rows in group ``j`` of the cells."""
    lanes = vectors().lanes
    place = item_at(b, cells, j, 8 * lanes)
    return [item_at(b, start, load(b, at(b, place, 8 * i), i64, 8), nb) for i in range(lanes)]


def _scales(b: Value, blocks: list[Value]) -> Value:
    """The scales of blocks, one in each lane."""
    words = ir.Constant(vec(i16, len(blocks)), ir.Undefined)
    for lane, block in enumerate(blocks):
        words = b.insert_element(words, load(b, block, i16), ir.Constant(i32, lane))
    return widen(b, F16, words)


def _largest(b: Value, magnitudes: Value) -> Value:
    """The largest of the bits of floats without sign, as a float; a NaN is larger than all."""
    name = f"llvm.vector.reduce.smax.v{magnitudes.type.count}i32"
    return b.bitcast(call(b, name, i32, magnitudes), f32)


def _larger(b: Value, x: Value, most: Value) -> Value:
    """The larger magnitude of floats, as bits, in each lane."""
    bits = b.and_(b.bitcast(x, most.type), splat(i32, most.type.count, 0x7FFFFFFF))
    return b.select(b.icmp_signed(">", bits, most), bits, most)


def _steps_and_scale(b: Value, most: Value) -> tuple[Value, Value]:
    """What floats are multiplied by before they are rounded, and the integers after that."""
    steps = b.fdiv(ir.Constant(f32, float(_MOST)), most)
    is_tiny = b.fcmp_ordered("<", most, ir.Constant(f32, _TINY))
    steps = b.select(is_tiny, ir.Constant(f32, 0.0), steps)
    return steps, b.fmul(most, ir.Constant(f32, 1 / _MOST))


def _rounded(b: Value, x: Value) -> Value:
    """Floats as int16, ties to even."""
    n = x.type.count
    x = b.fadd(x, splat(f32, n, _ROUND))
    return b.trunc(b.bitcast(x, vec(i32, n)), vec(i16, n))


@intrinsic_from_ir
def round_query(b: Value, q: Value, d: Value) -> None:
    """Replace ``d`` float32, a multiple of 32, by ``d`` int16 and their scale, float32.

    Each four integers are in the order 0 2 1 3. The scale is NaN or inf if a number is.
    """
    steps, four = b.lshr(d, const(2)), vec(f32, 4)

    def body(i: Value, most: list[Value]) -> list[Value]:
        return [_larger(b, load(b, item_at(b, q, i, 16), four), most[0])]

    most = _largest(b, *counted_loop(b, steps, [splat(i32, 4, 0)], body))
    factor, scale = _steps_and_scale(b, most)
    with for_range(b, steps) as i:  # writes where floats have been read already
        x = b.fmul(load(b, item_at(b, q, i, 16), four), broadcast(b, factor, 4))
        store(b, _rounded(b, lanes_of(b, x, x, (0, 2, 1, 3))), item_at(b, q, i, 8))
    store(b, scale, item_at(b, q, d, 2))


def _transposed(b: Value, x: list[Value]) -> list[Value]:
    """Four vectors of words: of each group of four lanes the rows become columns."""
    n = x[0].type.count

    def fours(u: Value, v: Value, *lanes: int) -> Value:
        """Lanes of each group of four; 4 to 7 are of the second vector."""
        chosen = [4 * k + i % 4 + n * (i // 4) for k in range(n // 4) for i in lanes]
        return lanes_of(b, u, v, chosen)

    low = [fours(x[i], x[i + 1], 0, 4, 1, 5) for i in (0, 2)]
    high = [fours(x[i], x[i + 1], 2, 6, 3, 7) for i in (0, 2)]
    return [fours(*pair, *lanes) for pair in (low, high) for lanes in ((0, 1, 4, 5), (2, 3, 6, 7))]


def _key_codes(b: Value, blocks: list[Value]) -> Iterator[Value]:
    """The codes of a block of each key, <2 lanes x i16>: columns 0 2, 1 3, 4 6, 5 7, ..."""
    lanes = len(blocks)
    by = splat(i16, 2 * lanes, 8)
    for first in (0, 16):
        loaded = [load(b, at(b, x, _CODE + first), vec(i8, 16)) for x in blocks]
        rows = [b.bitcast(concat(b, loaded[k::4]), vec(i32, lanes)) for k in range(4)]
        for four in _transposed(b, rows):
            pairs = b.bitcast(four, vec(i16, 2 * lanes))
            yield b.ashr(b.shl(pairs, by), by)
            yield b.ashr(pairs, by)


def _add_block(
    b: Value, queries: list[Value], i: Value, scale: Value, codes: Iterable[Value],
    totals: list[Value],
) -> list[Value]:  # fmt: skip
    """Add block ``i`` of all keys to the totals of each query row."""
    v = vectors()
    sums = [[splat(i32, v.lanes, 0)] * 2 for _ in queries]  # two: shorter chains
    for k, pairs in enumerate(codes):
        for x, two in zip(queries, sums, strict=True):
            place = item_at(b, at(b, x, 4 * k), i, 64)
            y = b.bitcast(broadcast(b, load(b, place, i32), v.lanes), pairs.type)
            two[k % 2] = v.pair_add(b, two[k % 2], pairs, y)
    exact = [b.sitofp(b.add(*two), vec(f32, v.lanes)) for two in sums]
    return [fma(b, x, scale, total) for x, total in zip(exact, totals, strict=True)]


def _store_scores(
    b: Value, queries: list[Value], d: Value, totals: list[Value], scores: Value, s_stride: Value,
    j: Value,
) -> None:  # fmt: skip
    """Store the scores of group ``j`` of the keys."""
    lanes = vectors().lanes
    for r, total in enumerate(totals):
        scale = broadcast_f32(b, item_at(b, queries[r], d, 2), lanes)
        place = item_at(b, item_at(b, scores, r, s_stride), j, 4 * lanes)
        store(b, b.fmul(total, scale), place)


@intrinsic_from_ir(literals=2)
def qk_codes(
    b: Value, n_rows: int, locality: int, q: Value, q_stride: Value, keys: Value, nb: Value,
    cells: Value, n: Value, d: Value, scores: Value, s_stride: Value, values: Value, nb_v: Value,
    lines: Value,
) -> None:  # fmt: skip
    """Store the scores of ``n_rows`` rounded queries and ``n`` keys in cells of the cache.

    Scores are written, and cells read, up to a multiple of 16. The first ``lines`` cache lines of
    each key's values are prefetched, which are read next.
    """
    lanes = vectors().lanes
    queries = [item_at(b, q, r, q_stride) for r in range(n_rows)]
    steps = b.lshr(d, const(5))
    share = b.udiv(const(lanes << 16), steps)
    share = b.select(b.icmp_signed(">", lines, const(0)), share, const(0))

    with for_range(b, _groups(b, n)) as j:
        key = _rows(b, keys, nb, cells, j)
        later = RowsLater(cells, n, times(b, j, lanes), share, values, nb_v, lines, locality)

        def body(
            i: Value, totals: list[Value], key: list[Value] = key, later: RowsLater = later
        ) -> list[Value]:
            later.prefetch(b, i)
            blocks = [item_at(b, k, i, BLOCK_BYTES) for k in key]
            return _add_block(b, queries, i, _scales(b, blocks), _key_codes(b, blocks), totals)

        totals = counted_loop(b, steps, [splat(f32, lanes, 0.0)] * n_rows, body)
        _store_scores(b, queries, d, totals, scores, s_stride, j)


@intrinsic_from_ir
def pack_key_codes(
    b: Value, keys: Value, nb: Value, cells: Value, n: Value, d: Value, out: Value
) -> None:
    """Pack ``n`` keys as ``out[n / lanes][d / 32][1 + 16][lanes]``: scales, and pairs of codes."""
    line, steps = 4 * vectors().lanes, b.lshr(d, const(5))
    with for_range(b, _groups(b, n)) as j:
        key = _rows(b, keys, nb, cells, j)
        with for_range(b, steps) as i:
            blocks = [item_at(b, k, i, BLOCK_BYTES) for k in key]
            place = item_at(b, out, b.add(b.mul(j, steps), i), 17 * line)
            store(b, _scales(b, blocks), place)
            for k, pairs in enumerate(_key_codes(b, blocks)):
                store(b, pairs, at(b, place, line * (1 + k)))


@intrinsic_from_ir(literals=1)
def qk_codes_packed(
    b: Value, n_rows: int, q: Value, q_stride: Value, keys: Value, n: Value, d: Value,
    scores: Value, s_stride: Value,
) -> None:  # fmt: skip
    """``qk_codes`` of packed keys."""
    lanes = vectors().lanes
    line, steps = 4 * lanes, b.lshr(d, const(5))
    queries = [item_at(b, q, r, q_stride) for r in range(n_rows)]
    with for_range(b, _groups(b, n)) as j:

        def body(i: Value, totals: list[Value], j: Value = j) -> list[Value]:
            place = item_at(b, keys, b.add(b.mul(j, steps), i), 17 * line)
            places = (at(b, place, line * (1 + k)) for k in range(16))
            codes = (load(b, x, vec(i16, 2 * lanes)) for x in places)
            return _add_block(b, queries, i, load(b, place, vec(f32, lanes)), codes, totals)

        totals = counted_loop(b, steps, [splat(f32, lanes, 0.0)] * n_rows, body)
        _store_scores(b, queries, d, totals, scores, s_stride, j)


def _value_codes(b: Value, row: list[Value], k: int, e: int) -> list[Value]:
    """Codes e, e + 1, ... of block ``k`` of two cells as pairs, <2 lanes x i16> twice.

    The first vector has the first four of each eight columns, the second the others.
    """
    size = 2 * vectors().lanes
    codes = [load(b, at(b, x, BLOCK_BYTES * k + _CODE + e), vec(i8, size)) for x in row]
    codes = [b.sext(x, vec(i16, size)) for x in codes]
    columns = ([8 * g + half + i for g in range(size // 8) for i in range(4)] for half in (0, 4))
    return [lanes_of(b, *codes, [c + size * i for c in some for i in (0, 1)]) for some in columns]


def _in_order(b: Value, halves: list[Value]) -> list[Value]:
    """The columns of two vectors in the order of ``_value_codes``, in their own order."""
    n = halves[0].type.count
    fours = [[4 * (g // 2) + n * (g % 2) + i for i in range(4)] for g in range(n // 2)]
    halves_of = (fours[: n // 4], fours[n // 4 :])
    return [lanes_of(b, *halves, [lane for four in some for lane in four]) for some in halves_of]


def _value_scales(
    b: Value, values: Value, nb: Value, cells: Value, n: Value, out: list[Value]
) -> None:
    """Store the scales of some blocks of each cell, float32[n] a block."""
    with for_range(b, _groups(b, n)) as j:
        rows = _rows(b, values, nb, cells, j)
        for k, start in enumerate(out):
            found = _scales(b, [at(b, x, BLOCK_BYTES * k) for x in rows])
            store(b, found, item_at(b, start, j, 4 * vectors().lanes))


def _round_weights(
    b: Value, p: Value, scales: Value, n: Value, products: Value, out: Value
) -> Value:
    """Store probabilities times scales of values, int16[n]; returns the scale of the integers."""
    lanes, count = vectors().lanes, _groups(b, n)
    floats = vec(f32, lanes)

    def body(j: Value, most: list[Value]) -> list[Value]:
        x, y = (load(b, item_at(b, start, j, 4 * lanes), floats) for start in (p, scales))
        # Cells that the row does not attend to are 0, whatever their scale
        x = b.select(b.fcmp_unordered("!=", x, splat(f32, lanes, 0.0)), b.fmul(x, y), x)
        store(b, x, item_at(b, products, j, 4 * lanes))
        return [_larger(b, x, most[0])]

    most = _largest(b, *counted_loop(b, count, [splat(i32, lanes, 0)], body))
    factor, scale = _steps_and_scale(b, most)
    with for_range(b, count) as j:
        x = load(b, item_at(b, products, j, 4 * lanes), floats)
        x = _rounded(b, b.fmul(x, broadcast(b, factor, lanes)))
        store(b, x, item_at(b, out, j, 2 * lanes))
    return scale


def _sum_values(
    b: Value, n_rows: int, scales: list[Value], p: Value, p_stride: Value, n: Value, out: Value,
    out_stride: Value, codes: Callable[[Value, bool, list[tuple[int, int]]], list[Value]],
) -> None:  # fmt: skip
    """Store the sums of blocks of values whose scales are in memory, for each row of ``p``.

    Args:
        codes: gives the codes of pair j of cells, of some (block, first column), two vectors each;
            and whether that is the first call for the pair.
    """
    v = vectors()
    lanes, n_blocks, row_bytes = v.lanes, len(scales), 2 * _CELLS
    weights = stack_memory(b, n_rows * n_blocks * row_bytes)
    products = stack_memory(b, 4 * _CELLS)
    places = [
        [at(b, weights, row_bytes * (r * n_blocks + k)) for k in range(n_blocks)]
        for r in range(n_rows)
    ]
    factors = [
        [
            _round_weights(b, item_at(b, p, r, p_stride), x, n, products, place)
            for x, place in zip(scales, places[r], strict=True)
        ]
        for r in range(n_rows)
    ]
    parts = [(k, e) for k in range(n_blocks) for e in range(0, 32, 2 * lanes)]
    per_pass = len(parts) if v.width == LINE else 1  # whose sums fit registers
    for first in range(0, len(parts), per_pass):
        some = parts[first : first + per_pass]

        def body(
            j: Value, sums: list[Value], first: int = first, some: list[tuple[int, int]] = some
        ) -> list[Value]:
            pairs = codes(j, not first, some)
            after = []
            for c, x in enumerate(pairs):
                for row in places:
                    w = load(b, item_at(b, row[some[c // 2][0]], j, 4), i32)
                    w = b.bitcast(broadcast(b, w, lanes), x.type)
                    after.append(v.pair_add(b, sums[len(after)], x, w))
            return after

        zeros = [splat(i32, lanes, 0)] * (2 * len(some) * n_rows)
        sums = counted_loop(b, b.lshr(b.add(n, const(1)), const(1)), zeros, body)
        for c, (k, e) in enumerate(some):
            for r in range(n_rows):
                halves = [sums[(2 * c + half) * n_rows + r] for half in (0, 1)]
                place = at(b, item_at(b, out, r, out_stride), 4 * (32 * k + e))
                factor = broadcast(b, factors[r][k], lanes)
                for i, x in enumerate(_in_order(b, halves)):
                    x = b.fmul(b.sitofp(x, vec(f32, lanes)), factor)
                    store(b, x, at(b, place, 4 * lanes * i))


@intrinsic_from_ir(literals=3)
def pv_codes(
    b: Value, n_rows: int, n_columns: int, locality: int, p: Value, p_stride: Value, values: Value,
    nb: Value, cells: Value, n: Value, out: Value, out_stride: Value, later: Value, keys: Value,
    nb_k: Value, lines: Value, first_later: Value, share: Value,
) -> None:  # fmt: skip
    """``out[r][0:d] = sum over j < n of p[r][j] * values[cells[j]][0:d]``; d is ``n_columns``.

    Each ``p[r]`` is 0 from ``n`` to a multiple of 16. Prefetches keys like ``attn_pv``.
    """
    memory = stack_memory(b, 4 * _CELLS * (n_columns // 32))
    scales = [at(b, memory, 4 * _CELLS * k) for k in range(n_columns // 32)]
    _value_scales(b, values, nb, cells, n, scales)
    share = times(b, share, 2)  # of a pair of cells
    keys_later = RowsLater(later, n, first_later, share, keys, nb_k, lines, locality)

    def codes(j: Value, is_first: bool, some: list[tuple[int, int]]) -> list[Value]:
        if is_first:
            keys_later.prefetch(b, j)
        listed = [load(b, item_at(b, at(b, cells, 8 * i), j, 16), i64, 8) for i in range(2)]
        row = [item_at(b, values, cell, nb) for cell in listed]
        return [x for k, e in some for x in _value_codes(b, row, k, e)]

    _sum_values(b, n_rows, scales, p, p_stride, n, out, out_stride, codes)


@intrinsic_from_ir
def pack_value_codes(
    b: Value, values: Value, nb: Value, cells: Value, n: Value, d: Value, out: Value
) -> None:
    """Pack ``n`` values as ``out[d / 32]``: scales, float32[256], and pairs, [128][32] words."""
    lanes = vectors().lanes
    with for_range(b, b.lshr(d, const(5))) as k:
        start = item_at(b, out, k, PACKED_BLOCK)
        block = item_at(b, values, k, BLOCK_BYTES)
        _value_scales(b, block, nb, cells, n, [start])
        with for_range(b, b.lshr(b.add(n, const(1)), const(1))) as j:
            places = (item_at(b, at(b, cells, 8 * i), j, 16) for i in range(2))
            row = [item_at(b, block, load(b, x, i64, 8), nb) for x in places]
            found = [x for e in range(0, 32, 2 * lanes) for x in _value_codes(b, row, 0, e)]
            for c, pairs in enumerate(found):
                store(b, pairs, item_at(b, at(b, start, 4 * _CELLS + 4 * lanes * c), j, 128))


PACKED_BLOCK = 4 * _CELLS + 64 * _CELLS  # bytes of a block of 256 packed values


@intrinsic_from_ir(literals=2)
def pv_codes_packed(
    b: Value, n_rows: int, n_columns: int, p: Value, p_stride: Value, values: Value, n: Value,
    out: Value, out_stride: Value,
) -> None:  # fmt: skip
    """``pv_codes`` of packed values."""
    lanes = vectors().lanes
    blocks = [at(b, values, PACKED_BLOCK * k) for k in range(n_columns // 32)]

    def codes(j: Value, is_first: bool, some: list[tuple[int, int]]) -> list[Value]:
        starts = [at(b, blocks[k], 4 * _CELLS + 4 * e + i) for k, e in some for i in (0, 4 * lanes)]
        return [load(b, item_at(b, x, j, 128), vec(i16, 2 * lanes)) for x in starts]

    _sum_values(b, n_rows, blocks, p, p_stride, n, out, out_stride, codes)
