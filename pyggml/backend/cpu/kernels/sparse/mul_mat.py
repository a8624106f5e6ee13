"""MUL_MAT_SPARSE: MUL_MAT's dot products for active rows, zeros for the others.

A chunk is a part of the list of active rows. Up to four tokens, or of more tokens where few need a
row: rows are transposed in registers (``plain_rows``) and multiplied with four tokens, which come
from memory once, or with each token that needs them if most rows are needed by one only. Otherwise
16 rows at a time are packed for all tokens and multiplied by MUL_MAT's tile. All give MUL_MAT's
bits.

In other forms (``ffn``) the same kernel also applies gate and activations, and writes the values of
AXPY: rows whose gate is 0 after ReLU are not read, and nothing is written for rows that are not
listed.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from .....compiler.jit import CpuKernel, inline, kernel
from .....rounding import ceil_div
from .....tensor import Tensor
from ...abi import (
    DST,
    SRC0,
    SRC1,
    SRC2,
    SRC3,
    SRC4,
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
)
from ...compile.lowering import CpuLowering, lowers
from ...compile.type_traits import trait
from ...compile.work import WorkRange
from ...simd.element import zero_run
from ...simd.plain_rows import prefetch_rows
from ...weights.buffer import is_repacked
from ...weights.layout import INTERLEAVED, QUANTIZED, ROWS
from ..elementwise.elementwise import IDS, function
from ..matrix.weights import (
    ACT_BYTES,
    BLOCK_BYTES,
    COLUMNS,
    DECODER,
    PACK,
    REG_TILE_1,
    REG_TILE_4,
    ROW_TILES,
    ROW_TOKENS,
    decode_to_scratch,
    is_decoded,
    layout_name,
    pack_group,
    packed_bytes,
    reg_tile,
    times_rows,
    weight_traits,
)
from ..quantize import add_quantize
from .active import active_rows, list_at, list_place, list_rows, neuron_of, segments

_BLOCK = 256  # rows that are listed in scratch at a time
_DENSE = 3  # cost of a dot product in ``times_rows``, in those of a tile of four tokens
_SHARED = 1.1  # with more tokens per row, on average, all are multiplied in one pass
_TILE_BYTES = 4 * ROWS * 4  # float32 results of one tile: 4 tokens, 16 rows
_FLOATS_BYTES = 4 * (_BLOCK + ROWS)
_TABLE_BYTES = 8 * (_BLOCK + 2 * ROWS)
_SCRATCH = 2 * _TILE_BYTES + 2 * ROW_TOKENS * _FLOATS_BYTES + _TABLE_BYTES + 4 * 4 * _BLOCK
ZERO = np.float32(0)
PLAIN, UP, GATE_ROWS, GATE = range(4)  # forms


class MulMatSparse(NamedTuple):
    """The values of ``mul_mat_sparse``."""

    activations: int  # address of the quantized activations, 0: SRC1 is read
    listed: int  # address of the list of active rows
    bucket: int  # whether SRC3 is a bucket
    out: int  # address of the results
    threshold: float
    traits: int


class Form(NamedTuple):
    """What is computed from ``up``, the dot products with the rows of SRC0.

    Args:
        kind: PLAIN: ``up``; UP: ``act(up + SRC4)``, SRC4 may be missing; GATE_ROWS: ``act(gate) *
            up_act(up)``, SRC4 has the gate's rows; GATE: the same, SRC4 has the gate's values.
        act, up_act: functions of ``elementwise``, or "" for none.
        squared: the result of UP is squared.
    """

    kind: int = PLAIN
    act: str = ""
    up_act: str = ""
    squared: bool = False


@kernel
def zero_f32(node, chunk, n_chunks, scratch):
    """Set the result to 0, rows front to back."""
    total = nrows(node, DST)
    for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
        zero_run(row_address(node, DST, r), ne(node, DST, 0))


@inline
def _fill(table, chosen, n, base, stride, later, n_later, later_base, later_stride):
    """Set pointers to chosen rows (the last one repeated up to a multiple of 16) and later rows.

    Prefetches the first ones; ``times_rows`` prefetches the others.
    """
    addresses, rows, coming = i64_ptr(table), i32_ptr(chosen), i32_ptr(later)
    end = (n + ROWS - 1) // ROWS * ROWS
    for i in range(end):
        addresses[i] = base + rows[min(i, n - 1)] * stride
    for i in range(ROWS):
        addresses[end + i] = addresses[end - 1]
        if n_later > 0:
            addresses[end + i] = later_base + coming[min(i, n_later - 1)] * later_stride
    prefetch_rows(table, min(n, 8), stride)


@cache
def mul_mat_sparse_kernel(form: Form) -> CpuKernel:
    """The kernel of a form, for weights of any format.

    Scratch: two tiles; four tokens' results and gates; row pointers; chosen rows and their
    neurons, the tokens that need each listed row and each chosen one; packed groups, decoded rows.
    Formats with a decoder take 16 rows at a time.
    """
    what, squared = form.kind, int(form.squared)
    act, up_act = IDS.get(form.act, -1), IDS.get(form.up_act, -1)

    def mul_mat_sparse(node, chunk, n_chunks, scratch):
        n, k, n_rows = ne(node, SRC1, 1), ne(node, SRC0, 0), ne(node, SRC0, 1)
        p = params_of(node, MulMatSparse)
        traits = p.traits
        blocks = k // trait(traits, COLUMNS)
        group = blocks * trait(traits, BLOCK_BYTES)
        listed, threshold = p.listed, p.threshold
        bucket = data(node, SRC3) if p.bucket != 0 else 0
        up_rows, up_bytes = data(node, SRC0), nb(node, SRC0, 1)
        gate_rows, gate_bytes = data(node, SRC4), nb(node, SRC4, 1)
        out, out_bytes = p.out, 4 * ne(node, SRC2, 0)
        acts, stride = p.activations, blocks * trait(traits, ACT_BYTES)
        if acts == 0:
            acts, stride = data(node, SRC1), nb(node, SRC1, 1)
        tiled, gate_tile = scratch, scratch + _TILE_BYTES
        dots = gate_tile + _TILE_BYTES
        gates = dots + ROW_TOKENS * _FLOATS_BYTES
        table = gates + ROW_TOKENS * _FLOATS_BYTES
        chosen = table + _TABLE_BYTES
        neurons, masks = i32_ptr(chosen + 4 * _BLOCK), i32_ptr(chosen + 8 * _BLOCK)
        takers = i32_ptr(chosen + 12 * _BLOCK)
        packed = chosen + 16 * _BLOCK
        gate_packed = packed + group
        floats = gate_packed + (group if what == GATE_ROWS else 0)
        most = _BLOCK if trait(traits, DECODER) == 0 else ROWS
        rows, count = list_rows(listed, n_rows), list_place(listed, n_rows, segments(n_rows))
        listed_at = list_at(listed, n_rows)
        groups = (count + ROWS - 1) // ROWS
        first = ROWS * first_row(groups, chunk, n_chunks)
        end = min(count, ROWS * first_row(groups, chunk + 1, n_chunks))
        while first < end:
            m = min(most, end - first)
            pairs = 0
            if n > ROW_TOKENS:
                for t in range(n):
                    scores = f32_ptr(data(node, SRC2) + t * nb(node, SRC2, 1))
                    for i in range(first, first + m):
                        pairs += scores[neuron_of(rows[i] + 0, bucket)] >= threshold
            if n <= ROW_TOKENS or _DENSE * pairs < n * m:
                for t0 in range(0, n, ROW_TOKENS):
                    tokens, pairs, needed = min(ROW_TOKENS, n - t0), 0, 0
                    for i in range(m):
                        neuron = neuron_of(rows[first + i] + 0, bucket)
                        mask = 0
                        for t in range(tokens):
                            scores = f32_ptr(data(node, SRC2) + (t0 + t) * nb(node, SRC2, 1))
                            mask |= (scores[neuron] >= threshold) << t
                            pairs += scores[neuron] >= threshold
                        masks[i] = mask
                        needed += mask != 0
                    step = tokens if pairs > _SHARED * needed else 1  # tokens of a pass
                    for t in range(t0, t0 + tokens, step):
                        y, x, c = out + t * out_bytes, acts + t * stride, 0
                        for i in range(m):
                            row = rows[first + i] + 0
                            neuron = neuron_of(row, bucket)
                            mask = (masks[i] >> (t - t0)) & ((1 << step) - 1)
                            for u in range(step):
                                f32_ptr(y + u * out_bytes)[neuron] = ZERO
                                if what == GATE:
                                    gate = f32_ptr(gate_rows + (t + u) * gate_bytes)[neuron]
                                    gate = function(act, gate)
                                    f32_ptr(gates + u * _FLOATS_BYTES)[c] = gate
                                    mask &= ~((gate == ZERO) << u)
                            neurons[c], i32_ptr(chosen)[c], takers[c] = neuron, row, mask
                            c += mask != 0
                        if what == GATE_ROWS and c > 0:
                            _fill(
                                table, chosen, c, gate_rows, gate_bytes,
                                chosen, c, up_rows, up_bytes,
                            )  # fmt: skip
                            decode_to_scratch(traits, table, c, k, floats)
                            times_rows(traits, step, table, c, x, stride, dots, _FLOATS_BYTES, k)
                            opened = 0
                            for i in range(c):
                                mask = takers[i]
                                for u in range(step):
                                    gate = function(act, f32_ptr(dots + u * _FLOATS_BYTES)[i])
                                    f32_ptr(gates + u * _FLOATS_BYTES)[opened] = gate
                                    mask &= ~((gate == ZERO) << u)
                                neurons[opened], takers[opened] = neurons[i], mask
                                i32_ptr(chosen)[opened] = i32_ptr(chosen)[i]
                                opened += mask != 0
                            c = opened
                        if c == 0:
                            continue
                        after = listed_at + 4 * (first + m)  # most likely this thread's next rows
                        left = count - first - m if t + step == n else 0
                        base, stride_after = (
                            (gate_rows, gate_bytes) if what == GATE_ROWS else (up_rows, up_bytes)
                        )
                        _fill(table, chosen, c, up_rows, up_bytes, after, left, base, stride_after)
                        decode_to_scratch(traits, table, c, k, floats)
                        times_rows(traits, step, table, c, x, stride, dots, _FLOATS_BYTES, k)
                        for i in range(c):
                            neuron = neurons[i]
                            for u in range(step):
                                if (takers[i] >> u) & 1 == 0:
                                    continue
                                v = f32_ptr(dots + u * _FLOATS_BYTES)[i]
                                if what == UP:
                                    if gate_rows != 0:
                                        v += f32_ptr(gate_rows)[neuron]
                                    v = function(act, v)
                                    v = v * v if squared else v
                                elif what != PLAIN:
                                    gate = f32_ptr(gates + u * _FLOATS_BYTES)[i]
                                    v = gate * (v if up_act < 0 else function(up_act, v))
                                f32_ptr(y + u * out_bytes)[neuron] = v
                first += m
                continue
            for g in range(first, first + m, ROWS):
                r = min(ROWS, first + m - g)
                for i in range(2 * ROWS):
                    i32_ptr(chosen)[i] = rows[min(g + i, count - 1)]
                _fill(table, chosen, 2 * ROWS, up_rows, up_bytes, chosen, 0, 0, 0)
                decode_to_scratch(traits, table, r, k, floats)
                pack_group(traits, table, k, packed)
                if what == GATE_ROWS:
                    _fill(table, chosen, 2 * ROWS, gate_rows, gate_bytes, chosen, 0, 0, 0)
                    decode_to_scratch(traits, table, r, k, floats)
                    pack_group(traits, table, k, gate_packed)
                t = 0
                while t < n:
                    tokens = 4 if t + 4 <= n else 1
                    x = acts + t * stride
                    which = REG_TILE_4 if tokens == 4 else REG_TILE_1
                    reg_tile(traits, which, packed, x, stride, tiled, blocks, 0)
                    if what == GATE_ROWS:
                        reg_tile(traits, which, gate_packed, x, stride, gate_tile, blocks, 0)
                    for u in range(tokens):
                        scores = f32_ptr(data(node, SRC2) + (t + u) * nb(node, SRC2, 1))
                        y = f32_ptr(out + (t + u) * out_bytes)
                        for i in range(r):
                            neuron = neuron_of(rows[g + i] + 0, bucket)
                            v = f32_ptr(tiled)[ROWS * u + i]
                            if what == UP:
                                if gate_rows != 0:
                                    v += f32_ptr(gate_rows)[neuron]
                                v = function(act, v)
                                v = v * v if squared else v
                            elif what != PLAIN:
                                if what == GATE:
                                    gate = f32_ptr(gate_rows + (t + u) * gate_bytes)[neuron]
                                else:
                                    gate = f32_ptr(gate_tile)[ROWS * u + i]
                                v = v if up_act < 0 else function(up_act, v)
                                gate = function(act, gate)
                                v = gate * v if gate != ZERO else ZERO
                            y[neuron] = v if scores[neuron] >= threshold else ZERO
                    t += tokens
            first += m

    parts = ("", "up", "gate_rows", "gate")[what], form.act, form.up_act, "sqr" * squared
    return kernel(mul_mat_sparse, "_".join(["mul_mat_sparse", *filter(None, parts)]))


def supports_sparse(node: Tensor) -> bool:
    """Plain rows of the formats that matmuls know."""
    a = node.src[0]
    return (a.type in INTERLEAVED or is_decoded(a.type)) and not is_repacked(a)


def launch_rows(
    lowering: CpuLowering, node: Tensor, form: Form, gate: Tensor | None, out: Tensor | WorkRange
) -> None:
    """Add the launch of a MUL_MAT_SPARSE in some form, with its result, F32 [F, T], at ``out``."""
    w, x, idx, placed = node.src
    act = [lowering.quantized(x, w.type.block_size, add_quantize)] if w.type in QUANTIZED else []
    listed = active_rows(lowering, node)
    n, groups = x.ne[1], max(1, ceil_div(w.ne[1], ROWS))
    passes = {1, min(n, ROW_TOKENS), n % ROW_TOKENS or 1}  # numbers of tokens
    functions = [ROW_TILES + tokens for tokens in passes]
    if n > ROW_TOKENS:
        functions += [PACK, REG_TILE_4, REG_TILE_1]
    params = MulMatSparse(
        activations=act[0].address if act else 0,
        listed=listed.address,
        bucket=node.op_params["bucket"],
        out=out.data if isinstance(out, Tensor) else out.address,
        threshold=node.op_params["threshold"],
        traits=weight_traits(lowering, w, *functions),
    )
    lowering.launch(
        mul_mat_sparse_kernel(form),
        node,
        params,
        min(groups, (8 if n == 1 else 16) * lowering.n_threads),
        src=(w, x, idx, placed, gate),
        work=[*act, listed],
        writes=out,
        scratch=_SCRATCH + (1 + (form.kind == GATE_ROWS)) * packed_bytes(w),
        variant=layout_name(w),
    )


@lowers("MUL_MAT_SPARSE", supports_sparse)
def _lower_mul_mat_sparse(lowering: CpuLowering, node: Tensor) -> None:
    lowering.launch(zero_f32, node, chunks=lowering.row_chunks(node), src=())
    launch_rows(lowering, node, Form(), None, node)
