"""The register tile of every matmul: 16 interleaved rows times a few tokens.

    q_tile(Q4_1, 4, hint, weights, acts, stride, out, n_blocks, ahead)    # in jitted code
    float_tile(F16, 4, hint, weights, w_stride, x, x_stride, out, out_stride, n, ahead)

``out`` gets 16 floats a token. A row's sum runs over its blocks in order whatever the number of
tokens, so a token's result has the same bits in a batch as alone.
Access: weights stream once per tile, front to back; activations are broadcast from L1.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from ....jit import inline
from ..layout import ACTIVATION_BYTES, K_TYPES, STEPS, block_bytes
from .kquant_dot import KDot
from .loop import counted_loop, literals_of
from .product import BlockDot, GroupBlock
from .vector import (
    LINE,
    at,
    broadcast,
    f32,
    fma,
    i64,
    load,
    prefetch,
    splat,
    store,
    vec,
    vectors,
)  # fmt: skip

Value = Any
F16, BF16, F32 = int(GGMLType.F16), int(GGMLType.BF16), int(GGMLType.F32)


@intrinsic(prefer_literal=True)
def q_tile(
    typingctx: Any, fmt: Any, tokens: Any, hint: Any, w: Any, y: Any, y_stride: Any, out: Any,
    n_blocks: Any, ahead: Any,
) -> Any:  # fmt: skip
    """Interleaved quantized rows times int8 activations of ``tokens`` (a literal) tokens.

    Each block prefetches, with a ``hint`` (a literal), weights ``ahead`` bytes after it: all lines
    of a block for one token, half of them for several, see ``prefetch_distance``. Where registers
    do not hold the sums of a block and those of the row, the latter stay in ``out``.
    """
    literals = literals_of(fmt, tokens, hint)
    if literals is None:
        return None
    kind, n_tokens, locality = literals

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, _, _, w, y, y_stride, out, n_blocks, ahead = args
        lines = prefetched_lines(kind, n_tokens)
        v = vectors()
        n_parts, lanes = v.parts, v.lanes
        n_sums = n_tokens * n_parts
        act_bytes = ACTIVATION_BYTES[GGMLType(kind).block_size]
        in_memory = n_sums > v.row_sums
        sums_at = [at(b, out, 4 * lanes * k) for k in range(n_sums)]
        rows = [b.add(y, b.mul(y_stride, ir.Constant(i64, t))) for t in range(n_tokens)]

        def body(i: Value, accs: list[Value]) -> list[Value]:
            block = b.add(w, b.mul(i, ir.Constant(i64, block_bytes(kind))))
            acts = [b.add(r, b.mul(i, ir.Constant(i64, act_bytes))) for r in rows]
            fetched = b.add(block, ahead)
            if kind in K_TYPES:
                each = lines // STEPS

                def prefetch_step(step: Value) -> None:
                    start = b.add(fetched, b.mul(step, ir.Constant(i64, LINE * each)))
                    _prefetch_lines(b, start, each, locality)

                dot: Any = KDot(b, kind, block, acts, prefetch_step)
            else:
                _prefetch_lines(b, fetched, lines, locality)
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
            return after

        zeros = [splat(f32, lanes, 0.0)] * n_sums
        if in_memory:
            for zero, place in zip(zeros, sums_at, strict=True):
                store(b, zero, place)
            zeros = []
        for acc, place in zip(counted_loop(b, n_blocks, zeros, body), sums_at, strict=False):
            store(b, acc, place)
        return context.get_dummy_value()

    return types.void(fmt, tokens, hint, *[types.int64] * 6), codegen


def prefetched_lines(kind: int, n_tokens: int) -> int:
    """Cache lines that ``q_tile`` prefetches for each block."""
    lines = -(-block_bytes(kind) // LINE)
    lines = lines if n_tokens == 1 else -(-lines // 2)
    return -(-lines // STEPS) * STEPS if kind in K_TYPES else lines  # as many a step


def _prefetch_lines(b: Value, address: Value, lines: int, hint: int) -> None:
    for line in range(lines):
        prefetch(b, at(b, address, LINE * line), hint)


@inline
def prefetch_distance(passed, left, distance, group_bytes, half_bytes):  # type: ignore[no-untyped-def]
    """How many bytes ahead a pass over a group of weights prefetches.

    Several passes over a group leave memory idle but for the first: the first two prefetch half of
    the next group each. With fewer than 8 tokens the first pass prefetches its own weights, the
    tuned ``distance`` ahead.

    Args:
        passed, left: tokens of the group before this pass, and from it on.
    """
    if passed + left < 8:
        return distance if passed == 0 else 0
    return group_bytes + passed // 4 * half_bytes if passed < 8 else 0


def float_tokens() -> int:
    """Tokens of the widest tile of float weights."""
    return {64: 8, 32: 6}.get(vectors().width, 4)


@intrinsic(prefer_literal=True)
def float_tile(
    typingctx: Any, fmt: Any, tokens: Any, hint: Any, w: Any, w_stride: Any, x: Any, x_stride: Any,
    out: Any, out_stride: Any, n: Any, ahead: Any,
) -> Any:  # fmt: skip
    """``out[t][0:16] = sum over i < n of x[t][i] * w[i][0:16]``; w is F16, BF16 or F32.

    Strides in bytes: of a column of w (16 interleaved values), of a token of x and of out. One
    token prefetches weights ``ahead`` bytes after those in use, with a ``hint`` (a literal).
    """
    literals = literals_of(fmt, tokens, hint)
    if literals is None:
        return None
    kind, n_tokens, locality = literals

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, _, _, w, w_stride, x, x_stride, out, out_stride, n, ahead = args
        v = vectors()
        lanes, size = v.lanes, 4 if kind == F32 else 2
        rows = [b.add(x, b.mul(x_stride, ir.Constant(i64, t))) for t in range(n_tokens)]
        outs = [b.add(out, b.mul(out_stride, ir.Constant(i64, t))) for t in range(n_tokens)]
        for parts in v.part_groups(n_tokens, v.parts, v.float_sums):

            def body(i: Value, accs: list[Value], parts: range = parts) -> list[Value]:
                column = b.add(w, b.mul(i, w_stride))
                if n_tokens == 1:
                    prefetch(b, b.add(column, ahead), locality)
                weights = []
                for p in parts:
                    address = at(b, column, size * lanes * p)
                    if kind == F32:
                        weights.append(load(b, address, vec(f32, lanes)))
                    else:
                        widen = v.load_half if kind == F16 else v.load_bfloat
                        weights.append(widen(b, address))
                offset = b.mul(i, ir.Constant(i64, 4))
                after = []
                for t, row in enumerate(rows):
                    a = broadcast(b, load(b, b.add(row, offset), f32), lanes)
                    first = t * len(parts)
                    after += [fma(b, x, a, accs[k]) for k, x in enumerate(weights, first)]
                return after

            zeros = [splat(f32, lanes, 0.0)] * (n_tokens * len(parts))
            places = [at(b, out, 4 * lanes * p) for out in outs for p in parts]
            for acc, place in zip(counted_loop(b, n, zeros, body), places, strict=True):
                store(b, acc, place)
        return context.get_dummy_value()

    return types.void(fmt, tokens, hint, *[types.int64] * 8), codegen
