"""MUL_MAT_ID, its gradient, and ADD_ID: matmuls with the experts that a token chose, and biases.

A *use* is a pair of token and expert. A chunk of MUL_MAT_ID is a range of 16-row groups times one
use. Where there are more uses than experts, it is such a range times all uses of one expert, which
an earlier launch has listed; up to 16 of their rows at a time (64 with a matrix unit) are gathered
into thread scratch and multiplied by MUL_MAT's tiles while the weights stay in cache. An id that
names no expert, or one without a slot, writes nothing and reports an error.

A chunk of MUL_MAT_ID_BACK is a block of an expert's matrix: the rows of its uses are packed as
panels, 256 at a time in order, and multiplied by their gradients, which are transposed.
"""

from __future__ import annotations

from typing import NamedTuple

from .....compiler.jit import inline, kernel
from .....dtype import GGMLType
from .....rounding import ceil_div
from .....tensor import Tensor
from ...abi import (
    BAD_INDEX,
    DST,
    SRC0,
    SRC1,
    SRC2,
    SRC3,
    data,
    first_row,
    i32_ptr,
    i64_ptr,
    nb,
    ne,
    nrows,
    params_of,
    row_address,
    set_error,
)
from ...compile.lowering import CpuLowering, by_rows, lowers
from ...compile.type_traits import trait
from ...compile.work import WorkRange
from ...simd.element import F32, copy_run, load_elem, store_elem, zero_run
from ...simd.plain_rows import TABLE_BYTES, set_row_pointers
from ...weights.buffer import is_repacked
from ...weights.layout import ROWS, group_bytes
from .matmul import supports_mul_mat
from .panels import (
    COLUMN_BYTES,
    PANEL_BYTES,
    PIECE,
    TILE_BYTES,
    pack_row,
    panel_tiles,
    times_panels,
)
from .weights import (
    BLOCK_BYTES,
    COLUMNS,
    MAX_TOKENS,
    PACK,
    REG_TILE_1,
    REG_TILE_4,
    RESULTS_BYTES,
    activations,
    decode_to_scratch,
    layout_name,
    multiply,
    pack_group,
    packed_bytes,
    prefetch_ahead,
    room_for_unit,
    start_unit,
    stop_unit,
    unit_for,
    unit_or,
    weight_traits,
    whole_units,
)

_GATHER = 16  # rows that are gathered at a time
_CHUNK_BYTES = 1 << 17  # weights of a chunk: they stay in L2 for all tokens of an expert
_BLOCK = 64  # rows and columns of a chunk of MUL_MAT_ID_BACK


class Uses(NamedTuple):
    """The values of ``list_uses``."""

    lists: int  # address of the result
    n_used: int  # experts of a token
    n_expert: int
    n_uses: int


class MulMatId(NamedTuple):
    """The values of ``mul_mat_id``."""

    row_chunks: int
    n_expert: int
    lists: int  # address of the uses by expert, 0: a chunk is one use
    activations: int  # address of the activations in another form, 0: SRC1 is read
    row_bytes: int  # of a token's activations
    traits: int
    plain: int  # whether the weights have ggml's layout
    panel: int  # where in scratch the matrix unit works; 0: it is not used


@inline
def expert_of(node, use, n_used, n_expert):
    """The expert of a use (counted over tokens); -1 if the id names no expert."""
    token = use // n_used
    ids = data(node, SRC2) + token * nb(node, SRC2, 1) + (use - token * n_used) * nb(node, SRC2, 0)
    expert = i32_ptr(ids)[0] + 0
    return expert if 0 <= expert < n_expert else -1


@inline
def matrix_of(node, expert, slots, matrices):
    """The number of an expert's matrix; -1 if there is none.

    Args:
        slots, matrices: sources; expert i has matrix i if there are no slots.
    """
    if expert < 0 or data(node, slots) == 0:
        return expert
    slot = i32_ptr(data(node, slots))[expert] + 0
    return slot if 0 <= slot < ne(node, matrices, 2) else -1


@kernel
def list_uses(node, chunk, n_chunks, scratch):
    """List the uses by expert: where each expert's begin, the end, then the uses in order."""
    v = params_of(node, Uses)
    lists, n_used, n_expert, uses = v.lists, v.n_used, v.n_expert, v.n_uses
    starts, order = i64_ptr(lists), i64_ptr(lists + 8 * (n_expert + 1))
    for e in range(n_expert + 1):
        starts[e] = 0
    for use in range(uses):
        e = expert_of(node, use, n_used, n_expert)
        if e < 0:
            set_error(node, BAD_INDEX)
        elif e + 2 <= n_expert:
            starts[e + 2] += 1  # incremented while the uses are listed
    for e in range(2, n_expert + 1):
        starts[e] += starts[e - 1]
    for use in range(uses):
        e = expert_of(node, use, n_used, n_expert)
        if e >= 0:
            order[starts[e + 1]] = use
            starts[e + 1] += 1


@kernel
def mul_mat_id(node, chunk, n_chunks, scratch):
    """Weights of any format, in the plain or the interleaved layout.

    Scratch: a tile, numbers and rows of the gathered uses, a packed group and its row pointers.
    """
    p = params_of(node, MulMatId)
    traits, plain, acts = p.traits, p.plain, p.activations
    row_chunks, row_bytes = p.row_chunks, p.row_bytes
    m, k, n_b, n_used = ne(node, DST, 0), ne(node, SRC0, 0), ne(node, SRC1, 1), ne(node, DST, 1)
    groups, blocks = (m + ROWS - 1) // ROWS, k // trait(traits, COLUMNS)
    group, lists = blocks * trait(traits, BLOCK_BYTES), p.lists
    unit = chunk // row_chunks
    g0 = first_row(groups, chunk % row_chunks, row_chunks)
    g1 = first_row(groups, chunk % row_chunks + 1, row_chunks)
    order = i64_ptr(lists + 8 * (p.n_expert + 1))
    if lists == 0:
        first, end, expert = unit, unit + 1, expert_of(node, unit, n_used, p.n_expert)
    else:
        first, end, expert = i64_ptr(lists)[unit], i64_ptr(lists)[unit + 1], unit
        if first == end:
            return
    matrix = matrix_of(node, expert, SRC3, SRC0)
    if matrix < 0:
        set_error(node, BAD_INDEX)
        return
    gather = _GATHER if p.panel == 0 else MAX_TOKENS
    listed = i64_ptr(scratch + RESULTS_BYTES)
    gathered = scratch + RESULTS_BYTES + 8 * gather
    packed = gathered + gather * row_bytes
    panel, by_unit = scratch + p.panel, start_unit(traits, p.panel, end - first)
    if plain != 0:
        weights = data(node, SRC0) + matrix * nb(node, SRC0, 2)
    else:
        weights = data(node, SRC0) + matrix * groups * group
    while first < end:
        n = min(gather, end - first)
        here = min(by_unit, whole_units(traits, n))  # of these tokens
        for i in range(n):
            use = first if lists == 0 else order[first + i]
            token = use // n_used
            row = (use - token * n_used) % n_b
            if acts != 0:
                x = acts + (token * n_b + row) * row_bytes
            else:
                x = data(node, SRC1) + token * nb(node, SRC1, 2) + row * nb(node, SRC1, 1)
            copy_run(x, gathered + i * row_bytes, row_bytes // 4)
            listed[i] = use
        first += n
        for g in range(g0, g1):
            row = g * ROWS
            rows = min(ROWS, m - row)
            if plain != 0:
                w = packed + TABLE_BYTES
                set_row_pointers(packed, weights, nb(node, SRC0, 1), row, m)
                decode_to_scratch(traits, packed, rows, k, w + group)
                pack_group(traits, packed, k, w)
            else:
                w = weights + g * group
            t = 0
            while t < n:
                one_or_four = (4, REG_TILE_4) if t + 4 <= n else (1, REG_TILE_1)
                tokens, which = unit_or(t, here, one_or_four)
                x = gathered + t * row_bytes
                ahead = prefetch_ahead(traits, t, n - t, blocks)
                multiply(traits, which, w, x, row_bytes, scratch, blocks, tokens, ahead, panel)
                for i in range(tokens):
                    y = data(node, DST) + listed[t + i] * nb(node, DST, 1) + 4 * row
                    copy_run(scratch + 4 * ROWS * i, y, rows)
                t += tokens
    stop_unit(traits, by_unit)


def list_by_expert(lowering: CpuLowering, node: Tensor, n_expert: int) -> WorkRange:
    """Add the launch that lists the uses by expert; the list in work memory."""
    ids = node.src[2]
    out = lowering.take(8 * (n_expert + 1 + ids.nelements))
    uses = Uses(out.address, ids.ne[0], n_expert, ids.nelements)
    lowering.launch(list_uses, node, uses, reads=(ids,), writes=out)
    return out


def launch_mul_mat_id(lowering: CpuLowering, node: Tensor, slots: Tensor | None) -> None:
    """Add the launches of a product of ``src[1]`` and the matrices of ``src[0]``, by ``src[2]``."""
    w, x, ids = node.src[:3]
    plain = not is_repacked(w)
    n_expert = w.ne[2] if slots is None else slots.ne[0]
    by_use = node.nrows <= n_expert
    act, row_bytes = activations(lowering, w, x)
    lists = [] if by_use else [list_by_expert(lowering, node, n_expert)]
    one_group, packed = group_bytes(w.type, w.ne[0]), TABLE_BYTES + packed_bytes(w)
    groups = ceil_div(w.ne[1], ROWS)
    row_chunks = max(
        1, min(groups, max(groups * one_group // _CHUNK_BYTES, 2 * lowering.n_threads))
    )
    n = max(1, node.nrows // n_expert)  # tokens of an expert, about
    functions = (PACK, REG_TILE_4, REG_TILE_1) if plain else (REG_TILE_4, REG_TILE_1)
    gather = MAX_TOKENS if unit_for(w, n) else _GATHER
    scratch = RESULTS_BYTES + (8 + row_bytes) * gather + (packed if plain else 0)
    more, panel, scratch = room_for_unit(w, n, scratch)
    params = MulMatId(
        row_chunks=row_chunks,
        n_expert=n_expert,
        lists=lists[0].address if lists else 0,
        activations=act.address if act else 0,
        row_bytes=row_bytes,
        traits=weight_traits(lowering, w, *functions, *more),
        plain=plain,
        panel=panel,
    )
    lowering.launch(
        mul_mat_id,
        node,
        params,
        row_chunks * (node.nrows if by_use else n_expert),
        src=(w, x, ids, slots),
        work=[*lists, act] if act else lists,
        scratch=scratch,
        variant=layout_name(w),
    )


@lowers("MUL_MAT_ID", supports_mul_mat)
def _lower_mul_mat_id(lowering: CpuLowering, node: Tensor) -> None:
    launch_mul_mat_id(lowering, node, node.src[3])


class MulMatIdBack(NamedTuple):
    """The values of ``mul_mat_id_back``."""

    lists: int  # address of the uses by expert
    traits: int


@kernel
def mul_mat_id_back(node, chunk, n_chunks, scratch):
    """Blocks of each expert's matrix; panels and transposed gradients are in scratch."""
    v = params_of(node, MulMatIdBack)
    traits, n_used, n_b = v.traits, ne(node, SRC0, 1), ne(node, SRC1, 1)
    k, m, n_expert = ne(node, DST, 0), ne(node, DST, 1), ne(node, DST, 2)
    starts, order = i64_ptr(v.lists), i64_ptr(v.lists + 8 * (n_expert + 1))
    panels = scratch + TILE_BYTES
    gradients = panels + _BLOCK // ROWS * PANEL_BYTES
    across, down = (k + _BLOCK - 1) // _BLOCK, (m + _BLOCK - 1) // _BLOCK
    units = across * down * n_expert
    for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
        expert, block = u // (across * down), u % (across * down)
        column, row = block % across * _BLOCK, block // across * _BLOCK
        columns, rows = min(_BLOCK, k - column), min(_BLOCK, m - row)
        out = data(node, DST) + expert * nb(node, DST, 2) + row * nb(node, DST, 1) + 4 * column
        first, end = starts[expert], starts[expert + 1]
        if first == end:
            for r in range(rows):
                zero_run(out + r * nb(node, DST, 1), columns)
        for i0 in range(first, end, PIECE):
            piece = min(PIECE, end - i0)
            for i in range(piece):
                use = order[i0 + i]
                token = use // n_used
                slot = use - token * n_used
                x = data(node, SRC1) + token * nb(node, SRC1, 2) + slot % n_b * nb(node, SRC1, 1)
                pack_row(x + 4 * column, panels + i * COLUMN_BYTES, PANEL_BYTES, columns)
                d = data(node, SRC0) + token * nb(node, SRC0, 2) + slot * nb(node, SRC0, 1)
                for r in range(rows):
                    store_elem(F32, gradients + r * 4 * PIECE, i, load_elem(F32, d, row + r))
            times_panels(
                traits, gradients, 4 * PIECE, rows, panels, PANEL_BYTES, piece, columns, scratch,
                out, nb(node, DST, 1), i0 - first,
            )  # fmt: skip


@lowers("MUL_MAT_ID_BACK")
def _lower_mul_mat_id_back(lowering: CpuLowering, node: Tensor) -> None:
    k, m, n_expert, _ = node.ne
    lists = list_by_expert(lowering, node, n_expert)
    traits = weight_traits(lowering, Tensor(GGMLType.F32, node.ne), *panel_tiles())
    units = ceil_div(k, _BLOCK) * ceil_div(m, _BLOCK) * n_expert
    lowering.launch(
        mul_mat_id_back,
        node,
        MulMatIdBack(lists.address, traits),
        min(units, 16 * lowering.n_threads),
        work=[lists],
        scratch=TILE_BYTES + _BLOCK // ROWS * PANEL_BYTES + _BLOCK * 4 * PIECE,
    )


@kernel
def add_id_f32(node, chunk, n_chunks, scratch):
    """Rows of the result, front to back."""
    n, n_used, total = ne(node, DST, 0), ne(node, DST, 1), nrows(node, DST)
    for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
        token = r // n_used
        ids = data(node, SRC2) + token * nb(node, SRC2, 1)
        expert = i32_ptr(ids + (r - token * n_used) * nb(node, SRC2, 0))[0] + 0
        if expert < 0 or expert >= ne(node, SRC1, 1):
            set_error(node, BAD_INDEX)
            continue
        x, y = row_address(node, SRC0, r), row_address(node, DST, r)
        z = data(node, SRC1) + expert * nb(node, SRC1, 1)
        for i in range(n):
            store_elem(F32, y, i, load_elem(F32, x, i) + load_elem(F32, z, i))


lowers("ADD_ID")(by_rows(add_id_f32))
