"""AXPY: sums of active rows, each times its value, in the order of the rows.

Rows fall into segments of 1,024. A column's sum over a segment is one chain of fused multiply-adds,
and the segments' sums are added in order, so bits depend neither on threads nor on other tokens.
For a few tokens a chunk is a segment (times a stripe of columns, where threads are many), and a
second launch adds the segments' sums; for many it is a stripe of columns for a block of tokens.
Access: here one token: the rows of a segment whose values are not zero, 8 side by side, decoded in
registers; several tokens: see ``sparse_axpy_panel``.
"""

from __future__ import annotations

import numpy as np

from ....jit import Kernel, kernel
from ....tensor import Tensor
from ..abi import DST, SRC0, SRC3, data, f32_ptr, first_row, i64_ptr, nb, ne, params_of
from ..codec.rows import decode_columns
from ..facts import fact
from ..lowering import Lowering, lowers
from ..simd.axpy import TYPES, group_bytes, group_columns, place_of
from ..simd.element import F32, put, take, zero_run
from ..simd.plain_rows import ask_for_rows
from ..work import WorkRange
from .sparse import supports_sparse
from .sparse_active import SEGMENT, active_rows, list_place, list_rows, neuron_of, segments
from .sparse_axpy_panel import (
    PANEL_ROWS,
    SEGMENT_PANELS,
    TOGETHER,
    Axpy,
    add_rows,
    axpy_many,
    axpy_masks,
    panel_scratch,
    part_of,
    set_ends,
)  # fmt: skip
from .weights import (
    AXPY_BYTES,
    AXPY_COLUMNS,
    AXPY_DECODER,
    AXPY_ORDER,
    AXPY_ROWS,
    AXPY_UNPACK,
    is_decoded,
    layout_name,
    tile_kind,
    weight_facts,
)

_FEW = 16  # tokens whose sums over each segment are kept
_TOKENS = 256  # tokens of a chunk
_SUM_BYTES = 1 << 17  # of a chunk of many tokens: they stay in L2
# Of scratch, beside rows and their ends: addresses twice, a segment's addresses and values.
_SCRATCH = 16 * TOGETHER + 8 * (SEGMENT + TOGETHER) + 4 * SEGMENT


@kernel
def axpy(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """One token, and weights of any format.

    Scratch: the ends of 8 rows and their addresses; the segment's addresses and values; 8 rows
    in a format that has a decoder, as float32.
    """
    p = params_of(node, Axpy)
    facts = p.facts
    columns, size = fact(facts, AXPY_COLUMNS), fact(facts, AXPY_BYTES)
    sum_bytes = 4 * columns
    n_rows, width, listed = ne(node, SRC0, 1), ne(node, DST, 0), p.listed
    bucket = data(node, SRC3) if p.bucket != 0 else 0
    rows = list_rows(listed, n_rows)
    all_groups = (width + columns - 1) // columns
    segment, stripe, stripes = part_of(node, chunk)
    if segment >= segments(n_rows):
        return
    g0, g1 = first_row(all_groups, stripe, stripes), first_row(all_groups, stripe + 1, stripes)
    full = min(g1, width // columns) - g0
    left = 0 if g0 + full == g1 else (width - (g0 + full) * columns) * size // columns
    decoder = fact(facts, AXPY_DECODER)
    n_columns = min(g1 * columns, width) - g0 * columns
    weights = data(node, SRC0) + (g0 * size if decoder == 0 else 0)
    sums = p.sums + (segment * all_groups + g0) * sum_bytes
    addresses_at = scratch + 16 * TOGETHER + TOGETHER * size
    values_at = addresses_at + 8 * (SEGMENT + TOGETHER)
    floats = values_at + 4 * SEGMENT
    addresses, taken = i64_ptr(addresses_at), f32_ptr(values_at)
    zero_run(sums, (g1 - g0) * columns)
    set_ends(scratch, size)
    values = f32_ptr(p.values)
    n = 0
    first = list_place(listed, n_rows, segment)
    for i in range(first, list_place(listed, n_rows, segment + 1)):
        row = i if listed == 0 else rows[i] + 0
        addresses[n] = weights + row * nb(node, SRC0, 1)
        taken[n] = values[neuron_of(row, bucket)]
        n += taken[n] != 0
    later, stripe, stripes = part_of(node, chunk + 1)  # what this thread reads next
    begin = end = 0
    if later < segments(n_rows):
        begin, end = list_place(listed, n_rows, later), list_place(listed, n_rows, later + 1)
        skipped = first_row(all_groups, stripe, stripes) - g0 if decoder == 0 else 0
    for i in range(TOGETHER):
        addresses[n + i] = addresses[max(n - 1, 0)]
        if begin < end:
            at = min(begin + i, end - 1)
            row = at if listed == 0 else rows[at] + 0
            addresses[n + i] = weights + row * nb(node, SRC0, 1) + skipped * size
    row_bytes = full * size if decoder == 0 else nb(node, SRC0, 1)
    ask_for_rows(addresses_at, min(n, TOGETHER), row_bytes)
    for i in range(0, n, TOGETHER):
        c, some = min(TOGETHER, n - i), values_at + 4 * i
        if decoder != 0:
            for r in range(c):
                y = floats + 4 * n_columns * r
                decode_columns(decoder, addresses[i + r], y, n_columns, g0 * columns)
                addresses[i + r] = y
        add_rows(facts, addresses_at + 8 * i, c, some, sums, full, left, scratch)


@kernel
def axpy_sums(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """The sums of the segments of a few tokens, added in order."""
    p = params_of(node, Axpy)
    facts = p.facts
    columns, ordered = fact(facts, AXPY_COLUMNS), fact(facts, AXPY_ORDER)
    n, width, n_segments = ne(node, DST, 1), ne(node, DST, 0), segments(ne(node, SRC0, 1))
    groups = (width + columns - 1) // columns
    units = n * groups
    total = f32_ptr(scratch)
    for unit in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
        for i in range(columns):
            put(F32, scratch, i, np.float32(0))
        for segment in range(n_segments):
            sums = p.sums + 4 * columns * (segment * units + unit)
            for i in range(columns):
                put(F32, scratch, i, total[i] + take(F32, sums, i))
        t, first = unit // groups, unit % groups * columns
        y = f32_ptr(data(node, DST) + t * nb(node, DST, 1) + 4 * first)
        for c in range(min(columns, width - first)):
            y[c] = total[place_of(c, columns, ordered)]


def launch_axpy(
    low: Lowering, node: Tensor, values: Tensor | WorkRange, scores: Tensor | None
) -> None:
    """Add an AXPY.

    Args:
        values: what the rows are multiplied with, of all neurons.
        scores: the tokens' scores, unless values are zero where they are too low.
    """
    w, b, _, placed = node.src
    assert w is not None and b is not None
    n, n_segments = node.ne[1], max(1, -(-w.ne[1] // SEGMENT))
    kind, groups = tile_kind(w.type, TYPES), -(-w.ne[0] // group_columns())
    listed = active_rows(low, node)
    functions = [AXPY_ROWS] if n == 1 else [AXPY_UNPACK]
    if 1 < n <= _FEW and not is_decoded(w.type, TYPES):
        functions.insert(0, AXPY_ROWS)  # of rows that few tokens need
    tokens = -(-n // -(-n // _TOKENS))  # of a block
    if n <= _FEW:
        stripes = min(groups, -(-2 * low.n_threads // n_segments))
    else:
        fit = max(1, _SUM_BYTES // (tokens * 4 * group_columns()))
        stripes = max(-(-groups // fit), min(groups, 4 * low.n_threads))
    chunks, whole, share, stripe = stripes * n_segments, 0, 0, -(-groups // stripes)
    if n <= _FEW and stripes == 1 and groups >= low.n_threads:
        stripes = low.n_threads  # of the last segments, so that all threads end alike
        whole, cut = divmod(n_segments, stripes)
        share = whole + cut
        chunks, stripe = stripes * share, groups if whole else -(-groups // stripes)
    masks = sums = None
    if n > 1:
        masks = low.take((8 + 4 * PANEL_ROWS) * n_segments * SEGMENT_PANELS * n)
    if n <= _FEW:
        sums = low.take(4 * group_columns() * groups * n * n_segments)
    params = Axpy(
        values=values.data if isinstance(values, Tensor) else values.address,
        listed=listed.address if listed else 0,
        bucket=node.op_params["bucket"],
        masks=masks.address if masks else 0,
        sums=sums.address if sums else 0,
        stripes=stripes,
        token_blocks=-(-n // _TOKENS),
        threshold=node.op_params["threshold"],
        facts=weight_facts(w, *functions),
        whole=whole,
        share=share,
    )
    work = [r for r in (listed, values) if isinstance(r, WorkRange)]

    def add(
        made: Kernel, chunks: int, work: list[WorkRange], writes: Tensor | WorkRange,
        scratch: int = 0,
    ) -> None:  # fmt: skip
        low.launch(
            made, node, params, chunks, src=(w, b, scores, placed), work=work, writes=writes,
            reads=(w, placed, scores, values if isinstance(values, Tensor) else None),
            scratch=scratch, variant=layout_name(w),
        )  # fmt: skip

    made, scratch = axpy, _SCRATCH + TOGETHER * (group_bytes(kind) + 4 * group_columns() * stripe)
    if masks:
        add(axpy_masks, min(n_segments * SEGMENT_PANELS, 8 * low.n_threads), work, masks)
        made, work = axpy_many, [*work, masks]
        scratch = panel_scratch(kind, stripe, 0 if sums else tokens)
    if sums is None:
        add(made, stripes * params.token_blocks, work, node, scratch)
        return
    add(made, chunks, work, sums, scratch)
    chunks = max(1, min(n * groups, n * w.ne[0] // 1024, 8 * low.n_threads))
    add(axpy_sums, chunks, [sums], node)


@lowers("AXPY", supports_sparse)
def _lower_axpy(low: Lowering, node: Tensor) -> None:
    _, b, idx, _ = node.src
    assert b is not None
    launch_axpy(low, node, b, idx)
