"""MUL_MAT_ID_SPARSE, AXPY_ID, and a feed-forward part of both with its activation.

A *use* is a pair of token and expert. Where uses are at most as many as experts, a chunk is a
segment of one use's neurons: their active ones are listed, their rows multiplied, and the rows of
the values that are not 0 added to sums of the segment, which another launch adds in order. All
three in one pass, if the nodes are adjacent: the begin of a row of ``down`` is prefetched as soon
as its value is known, while the other rows of ``up`` are multiplied. With more uses MUL_MAT_ID
computes all rows and zeros replace the inactive ones; a chunk of AXPY_ID is then a stripe of an
expert's columns times all of its uses, up to 32 at a time, of which 64 rows at a time are decoded
once.

All give the bits of MUL_MAT, and sums that are cut at the same rows for any number of tokens.
Access: the active rows of a segment in order, the next ones prefetched.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from .....compiler.jit import CpuKernel, kernel
from .....ops.elementwise.formulas import PARAMETERS
from .....ops.elementwise.glu import ACTIVATIONS
from .....rounding import ceil_div, round_up
from .....tensor import Tensor
from ...abi import (
    BAD_INDEX,
    BAD_SCORE,
    DST,
    SRC0,
    SRC1,
    SRC3,
    SRC4,
    SRC5,
    SRC6,
    data,
    f32_ptr,
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
from ...compile.lowering import CpuLowering, fuses, lowers
from ...compile.type_traits import trait
from ...compile.work import WorkRange
from ...simd.axpy import TYPES, axpy_panel, group_bytes, group_columns, place_of
from ...simd.element import F32, load_elem, store_elem, zero_run
from ...simd.plain_rows import prefetch_rows, prefetch_run
from ...simd.vector import LINE
from ...weights.layout import QUANTIZED, ROWS, activation_bytes
from ..elementwise.elementwise import IDS, function
from ..matrix.experts import expert_of, launch_mul_mat_id, list_by_expert, matrix_of
from ..matrix.weights import (
    AXPY_BYTES,
    AXPY_COLUMNS,
    AXPY_DECODER,
    AXPY_ORDER,
    AXPY_ROWS,
    AXPY_UNPACK,
    ROW_TILES,
    decode_to_scratch,
    is_decoded,
    layout_name,
    packed_bytes,
    tile_kind,
    times_rows,
    weight_traits,
)
from ..quantize import add_quantize
from .axpy import (
    PANEL_ROWS,
    TOGETHER,
    SegmentSums,
    add_rows,
    launch_sums,
    set_ends,
    unpack_row,
)
from .mul_mat import ZERO, supports_sparse

_BEGIN = 256  # bytes of a row that are prefetched; hardware then follows the row
_LEAST_SEGMENT = 256  # neurons
_MOST_SEGMENTS = 16  # of an expert
_TOKENS = 32  # uses of an expert that pass a panel of decoded rows
_STRIPE = 512  # columns of a chunk of ``axpy_id_many``
DOTS, SUMS, BOTH = range(3)
# Functions that are 0 at 0: an inactive neuron, whose product is 0, then adds nothing
_ZERO_AT_ZERO = ("", "relu", "tanh", "silu", "gelu", "gelu_erf", "gelu_quick")


def segment_rows(n_ff: int) -> int:
    """Neurons of an expert whose rows are summed before their sum is added to the others'."""
    return round_up(max(1, ceil_div(n_ff, _MOST_SEGMENTS)), _LEAST_SEGMENT)


class UseForm(NamedTuple):
    """What is computed.

    Args:
        kind: DOTS: the products with active rows of SRC0; SUMS: the sums of rows of SRC4, times
            the values SRC5; BOTH: the values are ``act(SRC3) * up_act(product)``.
        act, up_act: functions of ``elementwise``, or "" for none.
    """

    kind: int
    act: str = ""
    up_act: str = ""


class SparseUses(NamedTuple):
    """The values of ``sparse_uses``."""

    activations: int  # address of the quantized activations, 0: SRC1 is read
    row_bytes: int  # of a token's activations
    n_expert: int
    n_ff: int
    segment: int  # neurons
    n_segments: int
    threshold: float
    traits: int  # of SRC0
    sum_traits: int  # of SRC4
    sums: int  # address of the sums


@cache
def sparse_uses_kernel(form: UseForm) -> CpuKernel:
    """The kernel of a form, for weights of any format. Scratch: see ``_use_scratch``."""
    what = form.kind
    act, up_act = IDS.get(form.act, -1), IDS.get(form.up_act, -1)

    def sparse_uses(node, chunk, n_chunks, scratch):
        p = params_of(node, SparseUses)
        segment, n_segments, n_used = p.segment, p.n_segments, ne(node, DST, 1)
        use, part = chunk // n_segments, chunk % n_segments
        token = use // n_used
        slot = use - token * n_used
        matrices = SRC4 if what == SUMS else SRC0
        matrix = matrix_of(node, expert_of(node, use, n_used, p.n_expert), SRC6, matrices)
        if matrix < 0:
            set_error(node, BAD_INDEX)
            return
        first = part * segment
        n = min(segment, p.n_ff - first)  # neurons
        table = scratch
        down_table = table + 8 * (segment + 2 * ROWS)
        chosen = down_table + 8 * (segment + TOGETHER)
        values = chosen + 4 * segment
        dots = values + 4 * (segment + TOGETHER)
        free = dots + 4 * ROWS
        addresses, added = i64_ptr(table), i64_ptr(down_table)
        rows, taken = i32_ptr(chosen), f32_ptr(values)
        count, threshold, up_bytes = 0, p.threshold, nb(node, SRC0, 1)
        down, down_bytes = data(node, SRC4) + matrix * nb(node, SRC4, 2), nb(node, SRC4, 1)
        if what != SUMS:
            traits, k = p.traits, ne(node, SRC0, 0)
            scores = data(node, SRC3) + token * nb(node, SRC3, 2) + slot * nb(node, SRC3, 1)
            bad = 0
            for j in range(first, first + n):
                score = load_elem(F32, scores, j)
                value = score if act < 0 else function(act, score)
                rows[count], taken[count] = j, value
                bad |= score != score
                is_active = score >= threshold
                if what == BOTH:
                    is_active &= value != ZERO
                count += is_active
            if bad != 0:
                set_error(node, BAD_SCORE)
            row = token * ne(node, SRC1, 1) + slot % ne(node, SRC1, 1)
            x = p.activations + row * p.row_bytes
            if p.activations == 0:
                x = row_address(node, SRC1, row)
            y = data(node, DST) + use * nb(node, DST, 1)
            if what == DOTS:
                zero_run(y + 4 * first, n)
            up = data(node, SRC0) + matrix * nb(node, SRC0, 2)
            for i in range(count + 2 * ROWS):
                addresses[i] = up + rows[min(i, max(count - 1, 0))] * up_bytes
            prefetch_rows(table, min(count, ROWS), up_bytes)
            listed, count = count, 0
            for i in range(0, listed, ROWS):
                m = min(ROWS, listed - i)
                decode_to_scratch(traits, table + 8 * i, m, k, free)
                times_rows(traits, 1, table + 8 * i, m, x, 0, dots, 0, k)
                for r in range(m):
                    j, v = rows[i + r] + 0, f32_ptr(dots)[r]
                    if what == DOTS:
                        f32_ptr(y)[j] = v
                        continue
                    v = taken[i + r] * (v if up_act < 0 else function(up_act, v))
                    if v != ZERO:
                        added[count], taken[count] = down + j * down_bytes, v
                        prefetch_run(added[count] + 0, min(_BEGIN, down_bytes))
                        count += 1
        if what == DOTS:
            return
        if what == SUMS:
            given = f32_ptr(row_address(node, SRC5, use))
            for j in range(first, first + n):
                added[count], taken[count] = down + j * down_bytes, given[j]
                count += given[j] != ZERO
            prefetch_rows(down_table, min(count, TOGETHER), down_bytes)
        for i in range(TOGETHER):
            added[count + i] = added[max(count - 1, 0)]
        traits = p.sum_traits
        columns, size, width = (
            trait(traits, AXPY_COLUMNS), trait(traits, AXPY_BYTES), ne(node, SRC4, 0)
        )  # fmt: skip
        groups, full = (width + columns - 1) // columns, width // columns
        left = 0 if full == groups else (width - full * columns) * size // columns
        uses = nrows(node, DST)
        sums = p.sums + (part * uses + use) * groups * 4 * columns
        zero_run(sums, groups * columns)
        set_ends(free, size)
        floats = free + TOGETHER * (16 + size)
        if count > 0:
            add_rows(
                traits, 1, down_table, count, values, sums, 0, free, floats, full, left, width, 0
            )

    name = ["sparse_experts", ("dots", "sums", "both")[what], form.act, form.up_act]
    return kernel(sparse_uses, "_".join(filter(None, name)))


def _use_scratch(segment: int, up: Tensor | None, down: Tensor | None) -> int:
    """Tables of rows, their numbers, values and products; decoded rows, or the ends of rows."""
    free = 0 if up is None else packed_bytes(up)
    if down is not None:
        kind = tile_kind(down.type, TYPES)
        decoded = TOGETHER * 4 * down.ne[0] if is_decoded(down.type, TYPES) else 0
        free = max(free, TOGETHER * (16 + group_bytes(kind)) + decoded)
    return 24 * segment + 20 * ROWS + 12 * TOGETHER + free


def _launch_uses(
    lowering: CpuLowering, node: Tensor, form: UseForm, up: Tensor | None, down: Tensor | None,
) -> None:  # fmt: skip
    """Add the launches of a form. ``up``, ``down``: the nodes of both ops; ``node`` is the last."""
    w, x, ids, scores = up.src[:4] if up is not None else (None, None, node.src[2], None)
    down_w, values = (None, None) if down is None else down.src[:2]
    slots = node.src[-1]
    matrices = w if w is not None else down_w
    assert matrices is not None
    n_ff, uses = matrices.ne[1], node.nrows
    segment = segment_rows(n_ff)
    n_segments = max(1, ceil_div(n_ff, segment))  # one, of zeros, without rows
    act: list[WorkRange] = []
    row_bytes = traits = sum_traits = 0
    if w is not None:
        row_bytes = 4 * w.ne[0]
        if w.type in QUANTIZED:
            act = [lowering.quantized(x, w.type.block_size, add_quantize)]
            row_bytes = activation_bytes(w.type, w.ne[0])
        traits = weight_traits(lowering, w, ROW_TILES + 1)
    sums = None
    if down_w is not None:
        sum_traits = weight_traits(lowering, down_w, AXPY_ROWS + 1)
        groups = ceil_div(down_w.ne[0], group_columns())
        sums = lowering.take(4 * group_columns() * groups * uses * n_segments)
    params = SparseUses(
        activations=act[0].address if act else 0,
        row_bytes=row_bytes,
        n_expert=matrices.ne[2] if slots is None else slots.ne[0],
        n_ff=n_ff,
        segment=segment,
        n_segments=n_segments,
        threshold=up.op_params["threshold"] if up is not None else 0.0,
        traits=traits,
        sum_traits=sum_traits,
        sums=sums.address if sums else 0,
    )
    if form.kind == BOTH:
        values = None
    lowering.launch(
        sparse_uses_kernel(form),
        node,
        params,
        uses * n_segments,
        src=(w, x, ids, scores, down_w, values, slots),
        work=act,
        writes=sums or node,
        scratch=_use_scratch(segment, w, down_w),
        variant=layout_name(matrices),
    )
    if sums is not None:
        launch_sums(lowering, node, SegmentSums(sums.address, n_segments, sum_traits), sums)


def _by_use(node: Tensor) -> bool:
    """Whether each use reads its expert's rows by itself."""
    slots = node.src[-1]
    return node.nrows <= (node.src[0].ne[2] if slots is None else slots.ne[0])


# --- many tokens ---


class Inactive(NamedTuple):
    """The values of ``zero_inactive``."""

    threshold: float


@kernel
def zero_inactive(node, chunk, n_chunks, scratch):
    """Set the results to 0 whose score is below the threshold; rows front to back."""
    threshold, n = params_of(node, Inactive).threshold, ne(node, DST, 0)
    total, bad = nrows(node, DST), 0
    for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
        y, scores = row_address(node, DST, r), row_address(node, SRC0, r)
        for i in range(n):
            score = load_elem(F32, scores, i)
            store_elem(F32, y, i, load_elem(F32, y, i) if score >= threshold else ZERO)
            bad |= score != score
    if bad != 0:
        set_error(node, BAD_SCORE)


class AxpyIdMany(NamedTuple):
    """The values of ``axpy_id_many``."""

    lists: int  # address of the uses by expert
    n_expert: int
    stripes: int  # of columns
    segment: int  # rows
    traits: int


@kernel
def axpy_id_many(node, chunk, n_chunks, scratch):
    """A stripe of an expert's columns, for all of its uses.

    Scratch: the end of a row; a decoded row, if the format has a decoder; pointers to 64 rows and
    to the next 64; each use's mask of a panel's rows and their values; decoded rows; the sums of a
    segment and the totals.
    """
    p = params_of(node, AxpyIdMany)
    traits, segment = p.traits, p.segment
    columns, size = trait(traits, AXPY_COLUMNS), trait(traits, AXPY_BYTES)
    ordered, decoder, sum_bytes = (
        trait(traits, AXPY_ORDER),
        trait(traits, AXPY_DECODER),
        4 * columns,
    )
    width, n_ff, row_bytes = ne(node, DST, 0), ne(node, SRC0, 1), nb(node, SRC0, 1)
    expert, stripe = chunk // p.stripes, chunk % p.stripes
    starts, order = i64_ptr(p.lists), i64_ptr(p.lists + 8 * (p.n_expert + 1))
    begin, end = starts[expert] + 0, starts[expert + 1] + 0
    matrix = matrix_of(node, expert, SRC3, SRC0)
    if matrix < 0:
        if begin < end:
            set_error(node, BAD_INDEX)
        return
    all_groups = (width + columns - 1) // columns
    g0, g1 = first_row(all_groups, stripe, p.stripes), first_row(all_groups, stripe + 1, p.stripes)
    groups, full = g1 - g0, min(g1, width // columns) - g0
    left = 0 if full == groups else (width - (g0 + full) * columns) * size // columns
    n_columns = min(g1 * columns, width) - g0 * columns
    weights = data(node, SRC0) + matrix * nb(node, SRC0, 2) + (g0 * size if decoder == 0 else 0)
    floats = scratch + (size + 7) // 8 * 8
    table = floats + groups * sum_bytes
    masks_at = table + 16 * PANEL_ROWS
    values_at = masks_at + 8 * _TOKENS
    panel = (values_at + 4 * PANEL_ROWS * _TOKENS + LINE - 1) // LINE * LINE
    sums = panel + PANEL_ROWS * groups * sum_bytes
    totals = sums + _TOKENS * groups * sum_bytes
    addresses, masks = i64_ptr(table), i64_ptr(masks_at)
    total, added = f32_ptr(totals), f32_ptr(sums)
    zero_run(scratch, size // 4)
    while begin < end:
        n = min(_TOKENS, end - begin)
        zero_run(totals, n * groups * columns)
        for start in range(0, n_ff, segment):
            stop = min(n_ff, start + segment)
            zero_run(sums, n * groups * columns)
            for row in range(start, stop, PANEL_ROWS):
                count, needed = min(PANEL_ROWS, stop - row), 0
                for i in range(2 * PANEL_ROWS):
                    addresses[i] = weights + min(row + i, n_ff - 1) * row_bytes
                for t in range(n):
                    given = f32_ptr(row_address(node, SRC1, order[begin + t]) + 4 * row)
                    taken = f32_ptr(values_at + 4 * PANEL_ROWS * t)
                    mask = c = 0
                    for i in range(count):
                        bit = np.int64(given[i] != ZERO)
                        taken[c] = given[i]
                        mask |= bit << i
                        c += bit
                    masks[t] = mask
                    needed |= mask
                for r in range(count):
                    if decoder == 0:
                        prefetch_rows(table + 8 * (PANEL_ROWS + r), 1, groups * size)
                    if (needed >> r) & 1 != 0:
                        unpack_row(
                            traits, addresses[r] + 0, panel + r * sum_bytes, scratch, floats, full,
                            left, n_columns, g0 * columns,
                        )  # fmt: skip
                for g in range(groups):
                    for t in range(n):
                        if masks[t] != 0:
                            axpy_panel(
                                masks[t] + 0, panel + g * PANEL_ROWS * sum_bytes,
                                values_at + 4 * PANEL_ROWS * t, sums + (t * groups + g) * sum_bytes,
                            )  # fmt: skip
            for i in range(n * groups * columns):
                total[i] += added[i]
        for t in range(n):
            y = f32_ptr(row_address(node, DST, order[begin + t]) + g0 * sum_bytes)
            for c in range(n_columns):
                group = f32_ptr(totals + (t * groups + c // columns) * sum_bytes)
                y[c] = group[place_of(c % columns, columns, ordered)]
        begin += n


def _lower_many(lowering: CpuLowering, node: Tensor) -> None:
    w, slots = node.src[0], node.src[-1]
    n_expert = w.ne[2] if slots is None else slots.ne[0]
    lists = list_by_expert(lowering, node, n_expert)
    kind, groups = tile_kind(w.type, TYPES), ceil_div(w.ne[0], group_columns())
    stripe = max(1, _STRIPE // group_columns())
    stripes = ceil_div(groups, stripe)
    params = AxpyIdMany(
        lists=lists.address,
        n_expert=n_expert,
        stripes=stripes,
        segment=segment_rows(w.ne[1]),
        traits=weight_traits(lowering, w, AXPY_UNPACK),
    )
    scratch = group_bytes(kind) + 8 + 16 * PANEL_ROWS + (8 + 4 * PANEL_ROWS) * _TOKENS + LINE
    scratch += 4 * group_columns() * stripe * (1 + PANEL_ROWS + 2 * _TOKENS)
    lowering.launch(
        axpy_id_many, node, params, stripes * n_expert, work=[lists], scratch=scratch,
        variant=layout_name(w),
    )  # fmt: skip


# --- lowering ---


@lowers("MUL_MAT_ID_SPARSE", supports_sparse)
def _lower_mul_mat_id_sparse(lowering: CpuLowering, node: Tensor) -> None:
    if _by_use(node):
        _launch_uses(lowering, node, UseForm(DOTS), node, None)
        return
    launch_mul_mat_id(lowering, node, node.src[-1])
    lowering.launch(
        zero_inactive,
        node,
        Inactive(node.op_params["threshold"]),
        lowering.row_chunks(node),
        src=(node.src[3],),
        reads=(node.src[3], node),
    )


@lowers("AXPY_ID", supports_sparse)
def _lower_axpy_id(lowering: CpuLowering, node: Tensor) -> None:
    if _by_use(node):
        _launch_uses(lowering, node, UseForm(SUMS), None, node)
    else:
        _lower_many(lowering, node)


@fuses("MUL_MAT_ID_SPARSE", "GLU", "AXPY_ID")
@fuses("MUL_MAT_ID_SPARSE", "UNARY", "GLU", "AXPY_ID")
def _lower_expert_ffn(lowering: CpuLowering, up: Tensor, *rest: Tensor) -> bool:
    """``axpy_id(act(gate) * up_act(up))``, where the gate is the score of ``up``."""
    *between, glu, axpy = rest
    act, up_act = ACTIVATIONS.get(glu.op_params["kind"]), ""
    if between:
        (unary,) = between
        up_act = unary.op_params["kind"]
        if unary.src[0] is not up or unary.nelements != up.nelements:
            return False
    if act is None or glu.op_params["swapped"] or act in PARAMETERS:
        return False
    if up_act not in _ZERO_AT_ZERO or up.src[0].ne[2] != axpy.src[0].ne[2]:
        return False
    last = between[0] if between else up
    if glu.src[0] is not up.src[3] or glu.src[1] is not last or axpy.src[1] is not glu:
        return False
    if axpy.src[2:] != (up.src[2], up.src[-1]) or not (_by_use(up) and _by_use(axpy)):
        return False
    if not (supports_sparse(up) and supports_sparse(axpy)):
        return False
    _launch_uses(lowering, axpy, UseForm(BOTH, act, up_act), up, axpy)
    return True
