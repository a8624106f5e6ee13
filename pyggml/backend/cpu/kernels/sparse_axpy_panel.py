"""AXPY of several tokens: rows decoded once for all, and a walk of each token through its mask.

Access: 16 rows of a few tokens or 64 of many are decoded into scratch, a stripe of columns wide, of
which a group of 64 columns stays in L1 while the tokens pass; a token's sums of a group stay in
registers while its rows of these are added, in order.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ....dtype import GGMLType
from ....jit import Kernel, kernel
from ..abi import (
    DST,
    SRC0,
    SRC1,
    SRC2,
    SRC3,
    data,
    f32_ptr,
    first_row,
    float_param,
    i32_ptr,
    i64_ptr,
    int_param,
    nb,
    ne,
)  # fmt: skip
from ..codec.rows import decode_columns
from ..layout import QUANTIZED
from ..simd.axpy import axpy_panel, decode_row, group_bytes, group_columns, place_of
from ..simd.element import F32, copy_bytes, zero_run
from ..simd.vector import vectors
from .sparse_active import SEGMENT, list_place, list_rows, neuron_of, segments

MASK_ROWS = 64
SEGMENT_MASKS = SEGMENT // MASK_ROWS
# Parameters of all kernels of AXPY; SUMS: where those of each segment are kept, or 0
VALUES, LIST, BUCKET, MASKS, SUMS, STRIPES, TOKEN_BLOCKS, ROWS, THRESHOLD, DECODER = range(10)


@kernel
def axpy_masks(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """For each 64 listed rows and each token: which rows it takes, as bits."""
    n, n_rows, listed = ne(node, DST, 1), ne(node, SRC0, 1), int_param(node, LIST)
    bucket = data(node, SRC3) if int_param(node, BUCKET) != 0 else 0
    threshold = float_param(node, THRESHOLD)
    rows = list_rows(listed, n_rows)
    total = segments(n_rows) * SEGMENT_MASKS
    neurons = i32_ptr(scratch)
    for unit in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
        segment = unit // SEGMENT_MASKS
        first = list_place(listed, n_rows, segment) + unit % SEGMENT_MASKS * MASK_ROWS
        count = min(MASK_ROWS, list_place(listed, n_rows, segment + 1) - first)
        for i in range(count):
            neurons[i] = neuron_of(first + i if listed == 0 else rows[first + i] + 0, bucket)
        masks = i64_ptr(int_param(node, MASKS) + 8 * unit * n)
        for t in range(n):
            values = f32_ptr(int_param(node, VALUES) + t * nb(node, SRC1, 1))
            scores = f32_ptr(data(node, SRC2) + t * nb(node, SRC2, 1))
            mask = 0
            for i in range(count):
                bit = values[neurons[i]] != 0
                if data(node, SRC2) != 0:
                    bit &= scores[neurons[i]] >= threshold
                mask |= np.int64(bit) << i
            masks[t] = mask


def panel_scratch(kind: int, rows: int, groups: int, tokens: int) -> int:
    """Bytes of scratch for panels of so many rows and groups, with totals."""
    sums = 4 * group_columns() * groups
    decoded = sums + group_bytes(kind) + 8  # a row and its end
    return decoded + 12 * MASK_ROWS + sums * (rows + 2 * tokens)


@cache
def axpy_panel_kernel(kind: int) -> Kernel:
    """The kernel of a weight type.

    Scratch: the end of a row; a row in a format that ``decode_row`` does not know, as float32;
    addresses and neurons of 64 rows; decoded rows; the sums of a segment (unless SUMS has them) and
    the totals.
    """
    columns, size, lanes = group_columns(), group_bytes(kind), vectors().lanes
    sum_bytes, block = 4 * columns, GGMLType(kind).block_size
    block_bytes, quantized = GGMLType(kind).type_size, kind in QUANTIZED

    def axpy_many(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        n, n_rows, width = ne(node, DST, 1), ne(node, SRC0, 1), ne(node, DST, 0)
        n_segments, listed = segments(n_rows), int_param(node, LIST)
        bucket = data(node, SRC3) if int_param(node, BUCKET) != 0 else 0
        rows, stripes = list_rows(listed, n_rows), int_param(node, STRIPES)
        all_groups = (width + columns - 1) // columns
        stripe, rest = chunk % stripes, chunk // stripes
        g0, g1 = first_row(all_groups, stripe, stripes), first_row(all_groups, stripe + 1, stripes)
        groups, full = g1 - g0, min(g1, width // columns) - g0
        left = 0 if full == groups else (width - (g0 + full) * columns) // block * block_bytes
        decoder = int_param(node, DECODER) if kind == F32 else 0
        n_columns = min(g1 * columns, width) - g0 * columns
        weights = data(node, SRC0) + (g0 * size if decoder == 0 else 0)
        together = int_param(node, ROWS)
        bits = -1 if together == MASK_ROWS else (1 << together) - 1
        floats = scratch + (size + 7) // 8 * 8
        addresses_at = floats + groups * sum_bytes
        neurons_at = addresses_at + 8 * MASK_ROWS
        panel = neurons_at + 4 * MASK_ROWS
        addresses, neurons = i64_ptr(addresses_at), i32_ptr(neurons_at)
        kept = int_param(node, SUMS)
        if kept != 0:
            s0, s1, t0, t1 = rest, min(rest + 1, n_segments), 0, n
            group_stride, token_stride = sum_bytes, all_groups * sum_bytes
            sums = kept + (rest * n * all_groups + g0) * sum_bytes
        else:
            s0, s1, blocks = 0, n_segments, int_param(node, TOKEN_BLOCKS)
            t0, t1 = first_row(n, rest, blocks), first_row(n, rest + 1, blocks)
            group_stride, token_stride = (t1 - t0) * sum_bytes, sum_bytes
            sums = panel + together * groups * sum_bytes
        tokens = t1 - t0
        totals = sums + tokens * groups * sum_bytes
        zero_run(scratch, size // 4)
        if kept == 0:
            zero_run(totals, tokens * groups * columns)
        for segment in range(s0, s1):
            first = list_place(listed, n_rows, segment)
            end = list_place(listed, n_rows, segment + 1)
            for t in range(tokens):
                for g in range(groups):
                    zero_run(sums + t * token_stride + g * group_stride, columns)
            for k in range(SEGMENT_MASKS):
                count = min(MASK_ROWS, end - first - k * MASK_ROWS)
                if count <= 0:
                    break
                masks = i64_ptr(int_param(node, MASKS) + 8 * (segment * SEGMENT_MASKS + k) * n)
                needed = 0
                for t in range(t0, t1):
                    needed |= masks[t]
                for i in range(count):
                    p = first + k * MASK_ROWS + i
                    row = p if listed == 0 else rows[p] + 0
                    neurons[i] = neuron_of(row, bucket)
                    addresses[i] = weights + row * nb(node, SRC0, 1)
                for sub in range(0, count, together):
                    if (needed >> sub) & bits == 0:
                        continue
                    for r in range(min(together, count - sub)):
                        if (needed >> (sub + r)) & 1 != 0:
                            x, y = addresses[sub + r] + 0, panel + r * sum_bytes
                            if decoder != 0:
                                decode_columns(decoder, x, floats, n_columns, g0 * columns)
                                x = floats
                            following = addresses[min(sub + r + 1, count - 1)] + 0
                            decode_row(kind, x, y, together * sum_bytes, full, following)
                            if left != 0:
                                copy_bytes(x + full * size, scratch, left)
                                y += full * together * sum_bytes
                                decode_row(kind, scratch, y, 0, 1, following)
                    for g in range(groups):
                        for t in range(tokens):
                            axpy_panel(
                                (masks[t0 + t] >> sub) & bits,
                                panel + g * together * sum_bytes,
                                int_param(node, VALUES) + (t0 + t) * nb(node, SRC1, 1),
                                neurons_at + 4 * sub,
                                sums + t * token_stride + g * group_stride,
                            )
            if kept == 0:
                total, added = f32_ptr(totals), f32_ptr(sums)
                for i in range(tokens * groups * columns):
                    total[i] += added[i]
        if kept == 0:
            for t in range(tokens):
                y = f32_ptr(data(node, DST) + (t0 + t) * nb(node, DST, 1) + g0 * sum_bytes)
                for c in range(min(groups * columns, width - g0 * columns)):
                    total = f32_ptr(totals + (c // columns * tokens + t) * sum_bytes)
                    y[c] = total[place_of(c % columns, lanes, quantized)]

    made = kernel(axpy_many)
    made.name = f"axpy_many_{GGMLType(kind).name.lower()}"
    return made
