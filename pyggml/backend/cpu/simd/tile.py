"""The register tile of every matmul: 16 interleaved rows times a few tokens.

    q_tile(Q4_1, 4, hint, weights, acts, stride, out, n_blocks, ahead)    # in jitted code
    float_tile(F16, 4, hint, weights, w_stride, x, x_stride, out, out_stride, n, ahead)
    add_lines(Q8_0, 4, block, start, act, out, ahead)  # out += 16 columns of a block

``out`` gets 16 floats a token. A row's sum runs over its blocks in order whatever the number of
tokens, so a token's result has the same bits in a batch as alone.
Access: weights stream once per tile, front to back; activations are broadcast from L1.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from ....compiler.jit import intrinsic_from_ir
from ....dtype import GGMLType
from ....rounding import ceil_div
from ..weights.layout import (
    ACTIVATION_BYTES,
    K_TYPES,
    QUANTIZED,
    STEP,
    STEPS,
    block_bytes,
    layout_k,
)
from .block_dot import BlockDot, BlockLines, GroupBlock, GroupKBlock, KDot
from .isa import fma, load_floats, vectors
from .vector import (
    LINE,
    at,
    broadcast_f32,
    counted_loop,
    f32,
    item_at,
    load,
    prefetch,
    prefetch_lines,
    splat,
    store,
    times,
    vec,
)

Value = Any


@intrinsic_from_ir(literals=3)
def q_tile(
    b: Value, kind: int, n_tokens: int, locality: int, w: Value, y: Value, y_stride: Value,
    out: Value, n_blocks: Value, ahead: Value,
) -> None:  # fmt: skip
    """Store 16 interleaved quantized rows times int8 activations of ``n_tokens`` tokens.

    Each block prefetches a block's lines ``ahead`` bytes after it. Where registers do not hold the
    sums of a block and those of the row, the latter stay in ``out``.
    """
    v, lines = vectors(), ceil_div(block_bytes(kind), LINE)
    n_parts, lanes = v.parts, v.lanes
    n_sums = n_tokens * n_parts
    act_bytes = ACTIVATION_BYTES[GGMLType(kind).block_size]
    in_memory = n_sums > v.row_sums
    sums_at = [at(b, out, 4 * lanes * k) for k in range(n_sums)]
    rows = [item_at(b, y, t, y_stride) for t in range(n_tokens)]

    def body(i: Value, accs: list[Value]) -> list[Value]:
        block = item_at(b, w, i, block_bytes(kind))
        acts = [item_at(b, r, i, act_bytes) for r in rows]
        fetched = b.add(block, ahead)
        if kind in K_TYPES:
            each = ceil_div(lines, STEPS)

            def prefetch_step(step: Value) -> None:
                start = item_at(b, fetched, step, LINE * each)
                prefetch_lines(b, start, each, locality)

            dot: Any = KDot(b, GroupKBlock(kind, block), acts, prefetch_step)
        else:
            prefetch_lines(b, fetched, lines - 1, locality)
            dot = BlockDot(b, GroupBlock(kind, block), acts)
        after = list(accs)
        for parts in v.part_groups(n_tokens, n_parts, v.block_sums):
            for t, p in product(range(n_tokens), parts):
                k = t * n_parts + p
                acc = load(b, sums_at[k], vec(f32, lanes)) if in_memory else accs[k]
                acc = dot.accumulate(b, acc, t, p)
                if in_memory:
                    store(b, acc, sums_at[k])
                else:
                    after[k] = acc
        if kind not in K_TYPES:  # the last line here: with SSE4.2 it would cost a register above
            prefetch_lines(b, at(b, fetched, LINE * (lines - 1)), 1, locality)
        return after

    zeros = [splat(f32, lanes, 0.0)] * n_sums
    if in_memory:
        for zero, place in zip(zeros, sums_at, strict=True):
            store(b, zero, place)
        zeros = []
    for acc, place in zip(counted_loop(b, n_blocks, zeros, body), sums_at, strict=False):
        store(b, acc, place)


@intrinsic_from_ir(literals=2)
def add_lines(
    b: Value, kind: int, n_lines: int, block: Value, start: Value, act: Value, out: Value,
    ahead: Value,
) -> None:  # fmt: skip
    """``out[0:16] +=`` some lines of an interleaved block times a block of activations.

    Args:
        start, n_lines: the columns, as of ``BlockLines``.
        ahead: bytes to the lines that are prefetched.
    """
    v = vectors()
    following = b.add(b.add(block, start), ahead)
    prefetch_lines(b, following, n_lines + 1, 3)
    dot = BlockDot(b, BlockLines(kind, block, start, n_lines), [act])
    for p in range(v.parts):
        place = at(b, out, v.width * p)
        store(b, dot.accumulate(b, load(b, place, vec(f32, v.lanes)), 0, p), place)


def widest_tile(kind: int) -> int:
    """Tokens of a format's widest tile; with one more, sums would not stay in registers."""
    if kind not in QUANTIZED:
        return {64: 8, 32: 6}.get(vectors().width, 4)
    if vectors().width < LINE:
        return 4
    return 7 if kind in K_TYPES and layout_k(kind).sub < STEP else 8  # two sums a token, and scales


@intrinsic_from_ir(literals=3)
def float_tile(
    b: Value, kind: int, n_tokens: int, locality: int, w: Value, w_stride: Value, x: Value,
    x_stride: Value, out: Value, out_stride: Value, n: Value, ahead: Value,
) -> None:  # fmt: skip
    """``out[t][0:16] = sum over i < n of x[t][i] * w[i][0:16]``; w is F16, BF16 or F32.

    Strides are in bytes: of a column of w (16 interleaved values), of a token of x and of out. The
    weights ``ahead`` bytes later are prefetched.
    """
    v = vectors()
    lanes, size = v.lanes, GGMLType(kind).type_size
    rows = [item_at(b, x, t, x_stride) for t in range(n_tokens)]
    outs = [item_at(b, out, t, out_stride) for t in range(n_tokens)]
    for parts in v.part_groups(n_tokens, v.parts, v.float_sums):

        def body(i: Value, accs: list[Value], parts: range = parts) -> list[Value]:
            column = item_at(b, w, i, w_stride)
            if parts.start == 0:
                prefetch(b, b.add(column, ahead), locality)
            places = (at(b, column, size * lanes * p) for p in parts)
            weights = [load_floats(b, kind, place, lanes) for place in places]
            offset = times(b, i, 4)
            after = []
            for t, row in enumerate(rows):
                a = broadcast_f32(b, b.add(row, offset), lanes)
                first = t * len(parts)
                after += [fma(b, x, a, accs[k]) for k, x in enumerate(weights, first)]
            return after

        zeros = [splat(f32, lanes, 0.0)] * (n_tokens * len(parts))
        places = [at(b, out, 4 * lanes * p) for out in outs for p in parts]
        for acc, place in zip(counted_loop(b, n, zeros, body), places, strict=True):
            store(b, acc, place)
