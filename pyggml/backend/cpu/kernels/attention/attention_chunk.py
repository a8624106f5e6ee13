"""QK^T and PV of one chunk of keys and values: read from the cache directly, or packed first.

    traits = low.traits(cache_traits(F16, F16, 32, 0, 0), *DIRECT)  # in a lowering
    find_cells(entries, first, begin, end, cells)           # in the kernel
    qk_direct(traits, 3, q, hd, k, nb_k, cells, n, scores, v, nb_v, lines)

Both forms give the same bits; packing pays off where many query rows read the chunk. Tiles of 16
rows (``*_tiles``) are another form, for heads that share a key, and integers (``*_codes``) one for
Q8_0 caches. Packed rows are padded with zeros to a multiple of 8. A pass serves up to 6 query rows.
Functions that depend on the types of the cache are called by address.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from .....compiler.jit import CpuKernel, inline, inline_strict, kernel, named_kernel
from .....dtype import GGMLType
from ...abi import f32_ptr, i32_ptr, i64_ptr
from ...atomics import call_address
from ...compile.type_traits import TypeTraits, trait
from ...simd.attention import attend
from ...simd.attention.attend import TILE_ROWS, attn_pv, attn_qk
from ...simd.attention.attend_codes import BLOCK_BYTES as CODE_BYTES
from ...simd.attention.attend_codes import (
    CODES,
    PACKED_BLOCK,
    pack_key_codes,
    pack_value_codes,
    pv_codes,
    pv_codes_packed,
    qk_codes,
    qk_codes_packed,
    round_query,
)
from ...simd.attention.attend_tile import (
    BLOCK_OF,
    GROUP,
    KEY_CELLS,
    KEY_COLUMNS,
    KEYS,
    MAX_AHEAD_STEPS,
    PANEL_BYTES,
    STEP,
    VALUE_CELLS,
    VALUE_COLUMNS,
    VALUES,
    multiply_and_split,
    multiply_steps,
    order_columns,
    score_power,
    score_tile,
    split_of,
    split_queries,
    split_steps,
    split_weights,
    sum_tile,
    turn_scores,
    use_float_tiles,
    widen_keys,
    widen_values,
)
from ...simd.kv_row import BLOCK, BLOCK_BYTES, element, transpose_8x8, widen_8
from ...simd.plain_rows import transpose_rows
from ...simd.vector import LINE
from ...tuning import Tuning

CHUNK = 256  # keys
S_STRIDE = 4 * CHUNK  # bytes of a row of scores
CELLS_BYTES = 8 * CHUNK  # of a list of cells
TILES_BYTES = PANEL_BYTES + 8 * CHUNK  # of scratch: a panel, or a ring and a list of offsets
_QUERY = 4 * GROUP * STEP  # bytes of a step of 16 query rows


@inline
def find_cells(entries, first, begin, end, out):
    """Write the cell (row of the cache, int64) of each key of a chunk.

    The chunk begins at key ``first``. Before key ``begin`` its cell stands in place of theirs, and
    after key ``end`` - 1 that of the last one: nobody attends to these.

    Args:
        entries: see ``list_entries``; 0 if key i is in cell i.
    """
    rows = i64_ptr(out)
    n = min(CHUNK, end - first)
    if entries == 0:
        for j in range(n):
            rows[j] = first + j
    else:
        pairs = i32_ptr(entries)
        low = max(begin - first, 0)
        for j in range(low, n):
            rows[j] = pairs[2 * j]
        for j in range(low):
            rows[j] = rows[low]
    for j in range(n, CHUNK):
        rows[j] = rows[n - 1]


@inline
def packed_column(d, hd8):
    """The place of column ``d`` of ``hd8`` in packed keys and queries.

    Columns s, s + 8, ... of partial sum s lie side by side, the sums in the order of the final
    additions.
    """
    lane = d % 8
    return (lane % 2 * 4 + lane // 2 % 2 * 2 + lane // 4) * (hd8 // 8) + d // 8


@cache
def _pack_keys(kind: int) -> CpuKernel:
    def pack_keys(k, nb_k, cells, n, hd, keys):
        rows = i64_ptr(cells)
        whole, hd8 = hd // 8 * 8, (hd + 7) // 8 * 8
        for j in range(0, n, 8):
            a0, a1, a2, a3 = (
                k + rows[j] * nb_k, k + rows[j + 1] * nb_k,
                k + rows[j + 2] * nb_k, k + rows[j + 3] * nb_k,
            )  # fmt: skip
            a4, a5, a6, a7 = (
                k + rows[j + 4] * nb_k, k + rows[j + 5] * nb_k,
                k + rows[j + 6] * nb_k, k + rows[j + 7] * nb_k,
            )  # fmt: skip
            out = keys + j // 16 * 64 * hd8 + j % 16 * 4
            for d in range(0, whole, 8):
                place = out + 8 * d  # 64 bytes for each step of 8
                transpose_8x8(kind, a0, a1, a2, a3, a4, a5, a6, a7, d, place, 8 * hd8)
            for d in range(whole, hd8):
                for i in range(8):
                    x = element(kind, k + rows[j + i] * nb_k, d) if d < hd else np.float32(0)
                    f32_ptr(out + 64 * packed_column(d, hd8))[i] = x

    return named_kernel(pack_keys, GGMLType(kind).name)


@cache
def _pack_values(kind: int) -> CpuKernel:
    def pack_values(v, nb_v, cells, n, hdv, values):
        rows = i64_ptr(cells)
        for j in range(n):
            source, out = v + rows[j] * nb_v, values + 64 * j
            whole = hdv // 8 * 8
            for d in range(0, whole, 8):
                widen_8(kind, source, d, out + d // 16 * 64 * CHUNK + d % 16 * 4)
            for d in range(whole, (hdv + 15) // 16 * 16):
                x = element(kind, source, d) if d < hdv else np.float32(0)
                f32_ptr(out + d // 16 * 64 * CHUNK)[d % 16] = x

    return named_kernel(pack_values, GGMLType(kind).name)


@kernel
def _qk_packed(q, d, keys, n, scores):
    attend.attn_qk_packed(q, 4 * d, keys, d, n, scores, S_STRIDE)


@kernel
def _pv_packed(p, values, n, sums, padded):
    attend.attn_pv_packed(p, S_STRIDE, values, 64 * CHUNK, n, sums, 4 * padded, padded)


@cache
def _qk_direct(kind: int, tail: int, hint: int) -> CpuKernel:
    def qk(rows, q, d, k, nb_k, cells, n, s, v, nb_v, lines):
        q_row = 4 * ((d + 7) // 8 * 8)
        if rows == 6:
            _qk(kind, 6, tail, hint, q, q_row, k, nb_k, cells, n, d, s, v, nb_v, lines)
        elif rows == 5:
            _qk(kind, 5, tail, hint, q, q_row, k, nb_k, cells, n, d, s, v, nb_v, lines)
        elif rows == 4:
            _qk(kind, 4, tail, hint, q, q_row, k, nb_k, cells, n, d, s, v, nb_v, lines)
        elif rows == 3:
            _qk(kind, 3, tail, hint, q, q_row, k, nb_k, cells, n, d, s, v, nb_v, lines)
        elif rows == 2:
            _qk(kind, 2, tail, hint, q, q_row, k, nb_k, cells, n, d, s, v, nb_v, lines)
        else:
            _qk(kind, 1, tail, hint, q, q_row, k, nb_k, cells, n, d, s, v, nb_v, lines)

    return named_kernel(qk, GGMLType(kind).name, tail)


@inline_strict
def _qk(kind, rows, tail, hint, q, q_row, k, nb_k, cells, n, d, s, v, nb_v, lines):
    attn_qk(kind, rows, tail, hint, q, q_row, k, nb_k, cells, n, d, s, S_STRIDE, v, nb_v, lines)


@kernel
def _round_query(q, d):
    round_query(q, d)


@cache
def _qk_codes(hint: int) -> CpuKernel:
    def qk(rows, q, d, k, nb_k, cells, n, s, v, nb_v, lines):
        if rows == 6:
            qk_codes(6, hint, q, 4 * d, k, nb_k, cells, n, d, s, S_STRIDE, v, nb_v, lines)
        elif rows == 5:
            qk_codes(5, hint, q, 4 * d, k, nb_k, cells, n, d, s, S_STRIDE, v, nb_v, lines)
        elif rows == 4:
            qk_codes(4, hint, q, 4 * d, k, nb_k, cells, n, d, s, S_STRIDE, v, nb_v, lines)
        elif rows == 3:
            qk_codes(3, hint, q, 4 * d, k, nb_k, cells, n, d, s, S_STRIDE, v, nb_v, lines)
        elif rows == 2:
            qk_codes(2, hint, q, 4 * d, k, nb_k, cells, n, d, s, S_STRIDE, v, nb_v, lines)
        else:
            qk_codes(1, hint, q, 4 * d, k, nb_k, cells, n, d, s, S_STRIDE, v, nb_v, lines)

    return named_kernel(qk, "codes")


@cache
def _pv_codes(columns: int, hint: int) -> CpuKernel:
    block = columns // 32 * CODE_BYTES

    def pv(rows, p, v, nb_v, cells, n, hdv, sums, padded, later, k, nb_k, lines):
        n_parts = hdv // columns
        for i in range(n_parts):  # each prefetches a part of the keys
            x, out = v + block * i, sums + 4 * columns * i
            first, share = n * i // n_parts, ((1 << 16) + n_parts - 1) // n_parts
            _sum_codes(
                columns, hint, rows, p, x, nb_v, cells, n, out, 4 * padded, later, k, nb_k, lines,
                first, share,
            )  # fmt: skip

    return named_kernel(pv, "codes", columns)


@inline_strict
def _sum_codes(
    d, hint, rows, p, v, nb_v, cells, n, out, o_row, later, k, nb_k, lines, first, share
):
    s_row = S_STRIDE
    if rows == 6:
        pv_codes(
            6, d, hint, p, s_row, v, nb_v, cells, n, out, o_row, later, k, nb_k, lines,
            first, share,
        )  # fmt: skip
    elif rows == 5:
        pv_codes(
            5, d, hint, p, s_row, v, nb_v, cells, n, out, o_row, later, k, nb_k, lines,
            first, share,
        )  # fmt: skip
    elif rows == 4:
        pv_codes(
            4, d, hint, p, s_row, v, nb_v, cells, n, out, o_row, later, k, nb_k, lines,
            first, share,
        )  # fmt: skip
    elif rows == 3:
        pv_codes(
            3, d, hint, p, s_row, v, nb_v, cells, n, out, o_row, later, k, nb_k, lines,
            first, share,
        )  # fmt: skip
    elif rows == 2:
        pv_codes(
            2, d, hint, p, s_row, v, nb_v, cells, n, out, o_row, later, k, nb_k, lines,
            first, share,
        )  # fmt: skip
    else:
        pv_codes(
            1, d, hint, p, s_row, v, nb_v, cells, n, out, o_row, later, k, nb_k, lines,
            first, share,
        )  # fmt: skip


@kernel
def _pack_key_codes(k, nb_k, cells, n, hd, keys):
    pack_key_codes(k, nb_k, cells, n, hd, keys)


@kernel
def _pack_value_codes(v, nb_v, cells, n, hdv, values):
    pack_value_codes(v, nb_v, cells, n, hdv, values)


@kernel
def _qk_codes_packed(q, d, keys, n, scores):
    qk_codes_packed(TILE_ROWS, q, 4 * d, keys, n, d, scores, S_STRIDE)


@cache
def _pv_codes_packed(columns: int) -> CpuKernel:
    block = columns // 32 * PACKED_BLOCK

    def pv(p, values, n, sums, padded):
        for i in range(padded // columns):
            x, out = values + block * i, sums + 4 * columns * i
            pv_codes_packed(TILE_ROWS, columns, p, S_STRIDE, x, n, out, 4 * padded)

    return named_kernel(pv, "codes", "packed", columns)


@kernel
def _load_tiles(table, d, out):
    transpose_rows(table, d, out, LINE)


@cache
def _load_split(kind: int) -> CpuKernel:
    def load_queries(table, d, out):
        transpose_rows(table, d, out, LINE)
        split_queries(kind, out, d // STEP)

    return named_kernel(load_queries, GGMLType(kind).name, "split")


@cache
def _qk_tiles(kind: int, hint: int) -> CpuKernel:
    def qk(
        n_tiles, q, d, k, nb_k, cells, n, s, panel, later, rows, nb_rows, line, lines, row_lines
    ):
        n_strips, columns = (d + KEY_COLUMNS - 1) // KEY_COLUMNS, KEY_COLUMNS
        for first in range(0, n, KEY_CELLS):
            n_cells = min(KEY_CELLS, n - first)
            for i in range(n_strips):
                column, done = columns * i, lines * i // n_strips
                n_steps, part = min(columns, d - column) // STEP, lines * (i + 1) // n_strips - done
                widen_keys(
                    kind, hint, k, nb_k, cells + 8 * first, n_cells, column, n_steps, panel,
                    later + 8 * first, rows + 64 * (line + done), nb_rows, part,
                )  # fmt: skip
                for t in range(n_tiles):
                    out = s + GROUP * S_STRIDE * t + 4 * first
                    query = q + GROUP * 4 * (d * t + column)
                    score_tile(panel, query, n_steps, out, S_STRIDE, i)
        for t in range(n_tiles):
            turn_scores(0, s + GROUP * S_STRIDE * t, S_STRIDE, (n + KEY_CELLS - 1) // KEY_CELLS * 4)

    return named_kernel(qk, GGMLType(kind).name, "tiles")


@cache
def _pv_tiles(kind: int, hint: int) -> CpuKernel:
    def pv(
        n_tiles, p, v, nb_v, cells, n, hdv, sums, panel, later, rows, nb_rows, line, lines,
        row_lines,
    ):  # fmt: skip
        n_strips, end = hdv // VALUE_COLUMNS, (n + STEP - 1) // STEP * STEP
        for i in range(n_strips):
            done = lines * i // n_strips
            part = lines * (i + 1) // n_strips - done
            for first in range(0, end, VALUE_CELLS):
                n_steps = min(VALUE_CELLS, end - first) // STEP
                widen_values(
                    kind, hint, v, nb_v, cells + 8 * first, VALUE_COLUMNS * i, n_steps,
                    panel, later + 8 * first, rows + 64 * (line + done), nb_rows, part,
                )  # fmt: skip
                for t in range(n_tiles):
                    weights = p + GROUP * S_STRIDE * t + 4 * first
                    out = sums + 4 * (GROUP * hdv * t + VALUE_COLUMNS * i)
                    sum_tile(panel, weights, S_STRIDE, n_steps, out, 4 * hdv, first)

    return named_kernel(pv, GGMLType(kind).name, "tiles")


@cache
def _qk_split(kind: int, hint: int, n_later: int, n_lines: int) -> CpuKernel:
    power = score_power(kind)

    def qk(
        n_tiles, q, d, k, nb_k, cells, n, s, panel, later, rows, nb_rows, line, lines, row_lines
    ):
        n_steps, n_blocks = d // STEP, (n + BLOCK_OF - 1) // BLOCK_OF
        ahead, first_row = _steps_ahead(n_tiles, n_steps), n * line // row_lines
        n_rows = n * (line + lines) // row_lines - first_row  # whole rows that are prefetched
        share = (n_rows << 16) // (n_blocks * n_steps)
        run = n_steps if n_tiles == 1 else ahead  # steps whose sums stay in registers
        offsets = panel + PANEL_BYTES
        list_offsets(cells, BLOCK_OF * n_blocks, nb_k, offsets)
        use_float_tiles(1)
        split_steps(kind, KEYS, k, offsets, ahead, panel)
        for block in range(n_blocks):
            out = s + 4 * BLOCK_OF * block
            for i in range(0, n_steps, run):
                step, count, query = n_steps * block + i, min(run, n_steps - i), q + _QUERY * i
                multiply_and_split(
                    kind, KEYS, hint, n_later, n_lines, panel, step, ahead, query, LINE, count, out,
                    S_STRIDE, i, i, k, offsets + 8 * BLOCK_OF * block, n_steps,
                    block + 1 < n_blocks, later + 8 * first_row, share, rows, nb_rows,
                )  # fmt: skip
                for t in range(1, n_tiles):
                    x, to = query + GROUP * 4 * d * t, out + GROUP * S_STRIDE * t
                    multiply_steps(kind, KEYS, panel, step, ahead, x, LINE, count, to, S_STRIDE, i)
        use_float_tiles(0)
        for t in range(n_tiles):
            turn_scores(power, s + GROUP * S_STRIDE * t, S_STRIDE, BLOCK_OF // GROUP * n_blocks)

    return named_kernel(qk, GGMLType(kind).name, "split")


@cache
def _pv_split(kind: int, hint: int, n_later: int, n_lines: int) -> CpuKernel:
    block_bytes = BLOCK_OF // BLOCK[kind] * BLOCK_BYTES[kind]

    def pv(
        n_tiles, p, v, nb_v, cells, n, hdv, sums, panel, later, rows, nb_rows, line, lines,
        row_lines,
    ):  # fmt: skip
        n_steps, n_blocks = (n + STEP - 1) // STEP, hdv // BLOCK_OF
        ahead, first_row = _steps_ahead(n_tiles, n_steps), n * line // row_lines
        n_rows = n * (line + lines) // row_lines - first_row  # whole rows that are prefetched
        share = (n_rows << 16) // (n_blocks * n_steps)
        run = n_steps if n_tiles == 1 else ahead
        for t in range(n_tiles):
            split_weights(kind, p + GROUP * S_STRIDE * t, S_STRIDE, n_steps)
        offsets = panel + PANEL_BYTES
        list_offsets(cells, STEP * n_steps, nb_v, offsets)
        use_float_tiles(1)
        split_steps(kind, VALUES, v, offsets, ahead, panel)
        for block in range(n_blocks):
            out = sums + 4 * BLOCK_OF * block
            for i in range(0, n_steps, run):
                step, count, weights = n_steps * block + i, min(run, n_steps - i), p + 4 * STEP * i
                multiply_and_split(
                    kind, VALUES, hint, n_later, n_lines, panel, step, ahead, weights, S_STRIDE,
                    count, out, 4 * hdv, i, i, v + block_bytes * block, offsets, n_steps,
                    block + 1 < n_blocks, later + 8 * first_row, share, rows, nb_rows,
                )  # fmt: skip
                for t in range(1, n_tiles):
                    x, to = weights + GROUP * S_STRIDE * t, out + 4 * GROUP * hdv * t
                    multiply_steps(
                        kind, VALUES, panel, step, ahead, x, S_STRIDE, count, to, 4 * hdv, i
                    )
        use_float_tiles(0)
        for t in range(n_tiles):
            order_columns(kind, sums + 4 * GROUP * hdv * t, 4 * hdv, n_blocks)

    return named_kernel(pv, GGMLType(kind).name, "split")


@inline
def list_offsets(cells, n, nb, out):
    """Write the offsets in bytes of ``n`` cells, int64."""
    rows, offsets = i64_ptr(cells), i64_ptr(out)
    for j in range(n):
        offsets[j] = rows[j] * nb


@inline
def _steps_ahead(n_tiles, n_steps):
    """How many steps are converted before they are multiplied, a power of two.

    Sums of one tile of rows stay in registers whatever the number; the smallest ring is best.
    """
    ahead = 1
    while n_tiles > 1 and ahead < MAX_AHEAD_STEPS and 2 * ahead <= n_steps:
        ahead *= 2
    return ahead


@cache
def _pv_direct(kind: int, columns: int, tail: int, hint: int) -> CpuKernel:
    block = 32 // BLOCK[kind] * BLOCK_BYTES[kind]  # bytes of 32 values

    def pv(rows, p, v, nb_v, cells, n, hdv, sums, padded, later, k, nb_k, lines):
        n_whole = hdv // columns
        for i in range(n_whole):  # each prefetches a part of the keys
            x, out = v + block * (columns * i // 32), sums + 4 * columns * i
            first, share = n * i // n_whole, ((1 << 16) + n_whole - 1) // n_whole
            _pv(
                kind, columns, hint, rows, p, x, nb_v, cells, n, out, padded, later, k, nb_k, lines,
                first, share,
            )  # fmt: skip
        if tail != 0:
            d, share = hdv - tail, (1 << 16) if n_whole == 0 else 0
            x, out = v + block // 32 * d, sums + 4 * d
            _pv(
                kind, tail, hint, rows, p, x, nb_v, cells, n, out, padded, later, k, nb_k, lines,
                0, share,
            )  # fmt: skip

    return named_kernel(pv, GGMLType(kind).name, columns, tail)


@inline_strict
def _pv(
    kind, d, hint, rows, p, v, nb_v, cells, n, out, padded, later, k, nb_k, lines, first, share
):
    s_row, o_row = S_STRIDE, 4 * padded
    if rows == 6:
        attn_pv(
            kind, 6, d, hint, p, s_row, v, nb_v, cells, n, out, o_row, later, k, nb_k, lines,
            first, share,
        )  # fmt: skip
    elif rows == 5:
        attn_pv(
            kind, 5, d, hint, p, s_row, v, nb_v, cells, n, out, o_row, later, k, nb_k, lines,
            first, share,
        )  # fmt: skip
    elif rows == 4:
        attn_pv(
            kind, 4, d, hint, p, s_row, v, nb_v, cells, n, out, o_row, later, k, nb_k, lines,
            first, share,
        )  # fmt: skip
    elif rows == 3:
        attn_pv(
            kind, 3, d, hint, p, s_row, v, nb_v, cells, n, out, o_row, later, k, nb_k, lines,
            first, share,
        )  # fmt: skip
    elif rows == 2:
        attn_pv(
            kind, 2, d, hint, p, s_row, v, nb_v, cells, n, out, o_row, later, k, nb_k, lines,
            first, share,
        )  # fmt: skip
    else:
        attn_pv(
            kind, 1, d, hint, p, s_row, v, nb_v, cells, n, out, o_row, later, k, nb_k, lines,
            first, share,
        )  # fmt: skip


# Places of the traits: bytes of 32 values, and of 32 elements of keys; functions.
VALUE_BYTES, KEY_BYTES = range(2)
(
    PACK_KEYS,
    PACK_VALUES,
    QK,
    PV,
    QK_PACKED,
    PV_PACKED,
    LOAD_TILES,
    QK_TILES,
    PV_TILES,
    ROUND_QUERY,
) = range(2, 12)
DIRECT, PACKED = (QK, PV), (PACK_KEYS, PACK_VALUES, QK_PACKED, PV_PACKED)
TILES = LOAD_TILES, QK_TILES, PV_TILES


def are_codes(kind_k: int, kind_v: int) -> bool:
    """Whether scores and sums of values are those of integers."""
    return kind_k in CODES and kind_v in CODES


class Later(NamedTuple):
    """How many rows a step of the split form prefetches, and how many lines of each."""

    n_rows: int
    n_lines: int


@cache
def cache_traits(
    kind_k: int, kind_v: int, columns: int, tail_k: int, tail_v: int, later: tuple[Later, Later],
    tuned: Tuning,
) -> TypeTraits:  # fmt: skip
    """The traits for the types of a cache.

    Args:
        columns: of values that the direct form sums at a time.
        tail_k: elements of a key after its last whole vector of 8.
        tail_v: columns of a value after its last whole ``columns``, rounded up to vectors (so some
            may be summed twice). Both tails are 0 for most models; then no code is made for them.
        later: the rows that a step of the split form prefetches, first of scores, then of sums.
    """
    hint = tuned.kv_hint
    functions: dict[int, Callable[[], CpuKernel]] = {
        PACK_KEYS: partial(_pack_keys, kind_k),
        PACK_VALUES: partial(_pack_values, kind_v),
        QK: partial(_qk_direct, kind_k, tail_k, hint),
        PV: partial(_pv_direct, kind_v, columns, tail_v, hint),
        QK_PACKED: lambda: _qk_packed,
        PV_PACKED: lambda: _pv_packed,
        LOAD_TILES: lambda: _load_tiles,
        QK_TILES: partial(_qk_tiles, kind_k, hint),
        PV_TILES: partial(_pv_tiles, kind_v, hint),
    }
    if split_of(kind_k, kind_v):
        functions |= {
            LOAD_TILES: partial(_load_split, kind_k),
            QK_TILES: partial(_qk_split, kind_k, hint, *later[0]),
            PV_TILES: partial(_pv_split, kind_v, hint, *later[1]),
        }
    if are_codes(kind_k, kind_v):
        functions |= {
            ROUND_QUERY: lambda: _round_query,
            PACK_KEYS: lambda: _pack_key_codes,
            PACK_VALUES: lambda: _pack_value_codes,
            QK: partial(_qk_codes, hint),
            PV: partial(_pv_codes, columns, hint),
            QK_PACKED: lambda: _qk_codes_packed,
            PV_PACKED: partial(_pv_codes_packed, columns),
        }
    numbers = {
        place: 32 // BLOCK[kind] * BLOCK_BYTES[kind]
        for place, kind in ((KEY_BYTES, kind_k), (VALUE_BYTES, kind_v))
    }
    return TypeTraits(numbers, functions)


@cache
def key_traits(kind: int, tail: int, tuned: Tuning) -> TypeTraits:
    """Those of `cache_traits` that ``qk_direct`` needs, of keys without values."""
    function = partial(_qk_direct, kind, tail, tuned.kv_hint)
    return TypeTraits({KEY_BYTES: 32 // BLOCK[kind] * BLOCK_BYTES[kind]}, {QK: function})


@inline
def lines_of(traits, place, d):
    """The number of cache lines of a row of ``d`` elements of keys (``KEY_BYTES``) or values."""
    return (d * trait(traits, place) // 32 + 63) // 64


@inline
def interleave_kv(traits, k, nb_k, v, nb_v, cells, n, hd, hdv, keys, values):
    """Pack keys as ``keys[n/16][d][16]`` and values as ``values[d/16][256][16]``, float32."""
    call_address(trait(traits, PACK_KEYS), (k, nb_k, cells, n, hd, keys))
    call_address(trait(traits, PACK_VALUES), (v, nb_v, cells, n, hdv, values))


@inline
def qk_packed(traits, q, d, keys, n, scores):
    """Scores of ``TILE_ROWS`` query rows against ``n`` packed keys."""
    call_address(trait(traits, QK_PACKED), (q, d, keys, n, scores))


@inline
def qk_direct(traits, rows, q, d, k, nb_k, cells, n, s, v, nb_v, lines):
    """Scores of up to 6 query rows against ``n`` keys in the cache; prefetches their values."""
    call_address(trait(traits, QK), (rows, q, d, k, nb_k, cells, n, s, v, nb_v, lines))


@inline
def qk_keys(traits, rows, q, d, k, nb_k, cells, n, s, prefetches):
    """``qk_direct`` of keys without values.

    If ``prefetches``, those of the next chunk, whose cells mostly follow.
    """
    lines = lines_of(traits, KEY_BYTES, d) if prefetches else 0
    qk_direct(traits, rows, q, d, k, nb_k, cells, n, s, k + CHUNK * nb_k, nb_k, lines)


@inline
def round_row(traits, q, d):
    """Round a query row in place, for a cache that is read as codes."""
    call_address(trait(traits, ROUND_QUERY), (q, d))


@inline
def load_tile(traits, table, d, out):
    """Load the 16 query rows whose addresses are in a table, for ``qk_tiles``."""
    call_address(trait(traits, LOAD_TILES), (table, d, out))


@inline
def qk_tiles(
    traits, n_tiles, q, d, k, nb_k, cells, n, s, panel, later, rows, nb_rows, line, lines, row_lines
):
    """Scores of tiles of 16 query rows.

    Prefetches a share of the rows in the cells ``later``: ``lines`` lines from ``line`` on, or as
    large a share of whole rows, which have ``row_lines``.
    """
    call_address(
        trait(traits, QK_TILES),
        (n_tiles, q, d, k, nb_k, cells, n, s, panel, later, rows, nb_rows, line, lines, row_lines),
    )


@inline
def pv_tiles(
    traits, n_tiles, p, v, nb_v, cells, n, hdv, sums, panel, later, rows, nb_rows, line, lines,
    row_lines,
):  # fmt: skip
    """Weighted sums of values for tiles of 16 rows; prefetches like ``qk_tiles``.

    The weights must be 0 from ``n`` to a multiple of 32; they are overwritten.
    """
    call_address(
        trait(traits, PV_TILES),
        (
            n_tiles, p, v, nb_v, cells, n, hdv, sums, panel, later, rows, nb_rows, line, lines,
            row_lines,
        ),
    )  # fmt: skip


@inline
def pv_packed(traits, p, values, n, sums, padded):
    """Sums of packed values, weighted by ``TILE_ROWS`` rows of probabilities."""
    call_address(trait(traits, PV_PACKED), (p, values, n, sums, padded))


@inline
def pv_direct(traits, rows, p, v, nb_v, cells, n, hdv, sums, padded, later, k, nb_k, lines):
    """Weighted sums of values in the cache; prefetches lines of the keys in the cells ``later``."""
    pv = trait(traits, PV)
    call_address(pv, (rows, p, v, nb_v, cells, n, hdv, sums, padded, later, k, nb_k, lines))
