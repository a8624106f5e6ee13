"""The register tile of every matmul: 16 interleaved rows times a few tokens.

    q_tile(Q4_1, 4, weights, acts, stride, out, n_blocks, ahead)      # in jitted code
    float_tile(F16, 4, weights, w_stride, x, x_stride, out, out_stride, n)

``out`` gets 16 floats a token. A row's sum runs over its blocks in order whatever the number of
tokens, so a token's result has the same bits in a batch as alone.
Access: weights stream once per tile, front to back; activations are broadcast from L1.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from ....jit import inline
from ..layout import Q8_BLOCK, block_bytes
from .vector import (
    LINE,
    at,
    broadcast,
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
)  # fmt: skip

Value = Any
# Bytes between the weights in use and those that are fetched; see docs/performance.md.
_AHEAD = 2048
Q4_0, Q4_1, Q8_0 = int(GGMLType.Q4_0), int(GGMLType.Q4_1), int(GGMLType.Q8_0)
Q5_0, Q5_1 = int(GGMLType.Q5_0), int(GGMLType.Q5_1)
F16, BF16, F32 = int(GGMLType.F16), int(GGMLType.BF16), int(GGMLType.F32)


def literals_of(*values: Any) -> tuple[int, ...] | None:
    """The values of literal integers; None asks Numba to type the call with literals."""
    if all(isinstance(v, types.IntegerLiteral) for v in values):
        return tuple(v.literal_value for v in values)
    return None


def counted_loop(b: Value, n: Value, carried: list[Value], body: Any) -> list[Value]:
    """``for i in range(n)``: ``carried = body(i, carried)``, all in registers."""
    before = b.block
    head, inside, end = (b.append_basic_block(x) for x in ("head", "body", "end"))
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(i64)
    i.add_incoming(ir.Constant(i64, 0), before)
    phis = []
    for start in carried:
        phi = b.phi(start.type)
        phi.add_incoming(start, before)
        phis.append(phi)
    b.cbranch(b.icmp_signed("<", i, n), inside, end)
    b.position_at_end(inside)
    after = body(i, phis)
    i.add_incoming(b.add(i, ir.Constant(i64, 1)), b.block)
    for phi, value in zip(phis, after, strict=True):
        phi.add_incoming(value, b.block)
    b.branch(head)
    b.position_at_end(end)
    return phis


@intrinsic(prefer_literal=True)
def q_tile(
    typingctx: Any, fmt: Any, tokens: Any, w: Any, y: Any, y_stride: Any, out: Any, n_blocks: Any,
    ahead: Any,
) -> Any:  # fmt: skip
    """Interleaved quantized rows times int8 activations of ``tokens`` (a literal) tokens.

    Meanwhile memory is asked for what lies ``ahead`` bytes behind each block: all of a block's
    lines for one token, half of them for several, see ``fetch_ahead``. Where registers do not hold
    the sums of a block and those of the row, the latter stay in ``out``.
    """
    literals = literals_of(fmt, tokens)
    if literals is None:
        return None
    kind, n_tokens = literals

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, _, w, y, y_stride, out, n_blocks, ahead = args
        lines = fetched_lines(kind, n_tokens)
        v = vectors()
        n_parts, lanes = v.parts, v.lanes
        n_sums = n_tokens * n_parts
        in_memory = n_sums > v.row_sums
        sums_at = [at(b, out, 4 * lanes * k) for k in range(n_sums)]
        rows = [b.add(y, b.mul(y_stride, ir.Constant(i64, t))) for t in range(n_tokens)]

        def body(i: Value, accs: list[Value]) -> list[Value]:
            block = b.add(w, b.mul(i, ir.Constant(i64, block_bytes(kind))))
            for line in range(lines):
                prefetch(b, b.add(at(b, block, LINE * line), ahead))
            acts = [b.add(r, b.mul(i, ir.Constant(i64, Q8_BLOCK))) for r in rows]
            code_sums = _byte_sums if kind == Q8_0 else _nibble_sums
            totals = code_sums(b, kind, block, acts)
            scales = [v.load_half(b, at(b, block, 2 * lanes * p)) for p in range(n_parts)]
            if kind in (Q4_1, Q5_1):
                offsets = [v.load_half(b, at(b, block, 32 + 2 * lanes * p)) for p in range(n_parts)]
            elif kind in (Q4_0, Q5_0):
                zero_code = splat(f32, lanes, -8.0 if kind == Q4_0 else -16.0)
                offsets = [b.fmul(s, zero_code) for s in scales]
            else:
                offsets = []
            after = []
            for t in range(n_tokens):
                d = broadcast(b, load(b, acts[t], f32), lanes)
                s = broadcast(b, load(b, at(b, acts[t], 4), f32), lanes)
                for p in range(n_parts):
                    k = t * n_parts + p
                    acc = load(b, sums_at[k], vec(f32, lanes)) if in_memory else accs[k]
                    product = b.sitofp(totals[t][p], vec(f32, lanes))
                    acc = fma(b, b.fmul(scales[p], d), product, acc)
                    acc = fma(b, offsets[p], s, acc) if offsets else acc
                    if in_memory:
                        store(b, acc, sums_at[k])
                    after.append(acc)
            return [] if in_memory else after

        zeros = [splat(f32, lanes, 0.0)] * n_sums
        if in_memory:
            for zero, place in zip(zeros, sums_at, strict=True):
                store(b, zero, place)
            zeros = []
        for acc, place in zip(counted_loop(b, n_blocks, zeros, body), sums_at, strict=False):
            store(b, acc, place)
        return context.get_dummy_value()

    return types.void(fmt, tokens, *[types.int64] * 6), codegen


def fetched_lines(kind: int, n_tokens: int) -> int:
    """Cache lines for each block that ``q_tile`` asks of memory."""
    lines = -(-block_bytes(kind) // LINE)
    return lines if n_tokens == 1 else -(-lines // 2)


@inline
def fetch_ahead(passed, left, group_bytes, half_bytes):  # type: ignore[no-untyped-def]
    """What a pass over a group of weights fetches, given the tokens that passed and that are left.

    Several passes over a group leave memory idle but for the first: the first two fetch half of
    the next group each. Of fewer than 8 tokens the first fetch what they are about to read.
    """
    if passed + left < 8:
        return _AHEAD if passed == 0 else 0
    return group_bytes + passed // 4 * half_bytes if passed < 8 else 0


def _byte_sums(b: Value, kind: int, block: Value, acts: list[Value]) -> list[list[Value]]:
    """Products of Q8_0's codes and int8 over a block, as integers [token][part]."""
    v, n_tokens = vectors(), len(acts)

    sums = [[v.s8_zero()] * v.parts for _ in acts]
    for line in range(8):
        for p in range(v.parts):
            q = load(b, at(b, block, LINE // 2 + LINE * line + v.width * p), vec(i8, v.width))
            ready = v.s8_prepare(b, q)
            for t in range(n_tokens):
                a = v.broadcast_bytes(b, at(b, acts[t], 8 + 4 * line))
                sums[t][p] = v.s8_add(b, sums[t][p], ready, a)
    return sums


def _nibble_sums(b: Value, kind: int, block: Value, acts: list[Value]) -> list[list[Value]]:
    """Products of codes of 4 or 5 bits and int8 over a block, as integers [token][part]."""
    v, n_tokens = vectors(), len(acts)
    five_bits = kind in (Q5_0, Q5_1)
    header = LINE if kind in (Q4_1, Q5_1) else LINE // 2  # 16 scales (and 16 minima)
    codes = header + LINE if five_bits else header
    lines = v.u5_lines if five_bits else 4  # whose products fit a sum

    def nibbles(line: int, p: int) -> tuple[Value, Value]:
        q = load(b, at(b, block, codes + LINE * line + v.width * p), vec(i8, v.width))
        low = b.and_(q, splat(i8, v.width, 15))
        high = b.lshr(q, splat(i8, v.width, 4))
        if five_bits:
            fifth = load(b, at(b, block, header + v.width * p), vec(i32, v.lanes))
            low = b.or_(low, _fifth(b, fifth, line))
            high = b.or_(high, _fifth(b, fifth, 4 + line))
        return low, high

    totals: list[list[Value]] = []
    for first in range(0, 4, lines):
        sums = [[v.u4_zero()] * v.parts for _ in acts]
        for line in range(first, first + lines):
            codes_of = [nibbles(line, p) for p in range(v.parts)]
            for t in range(n_tokens):
                acts_of = [v.broadcast_bytes(b, at(b, acts[t], 4 * line + n)) for n in (8, 24)]
                for p in range(v.parts):
                    for n, a in zip(codes_of[p], acts_of, strict=True):
                        sums[t][p] = v.u4_add(b, sums[t][p], n, a)
        part = [[v.u4_total(b, x) for x in row] for row in sums]
        totals = [
            [b.add(x, y) for x, y in zip(*rows, strict=True)]
            for rows in zip(totals, part, strict=True)
        ] if totals else part  # fmt: skip
    return totals


def _fifth(b: Value, bits: Value, k: int) -> Value:
    """Bit ``k`` of every byte, moved to bit 4."""
    n = bits.type.count
    shift = splat(i32, n, abs(4 - k))
    moved = b.shl(bits, shift) if k < 4 else b.lshr(bits, shift)
    return b.bitcast(b.and_(moved, splat(i32, n, 0x10101010)), vec(i8, 4 * n))


@intrinsic(prefer_literal=True)
def float_tile(
    typingctx: Any, fmt: Any, tokens: Any, w: Any, w_stride: Any, x: Any, x_stride: Any,
    out: Any, out_stride: Any, n: Any,
) -> Any:  # fmt: skip
    """``out[t][0:16] = sum over i < n of x[t][i] * w[i][0:16]``; w is F16, BF16 or F32.

    Strides in bytes: of a column of w (16 interleaved values), of a token of x and of out.
    """
    literals = literals_of(fmt, tokens)
    if literals is None:
        return None
    kind, n_tokens = literals

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, _, w, w_stride, x, x_stride, out, out_stride, n = args
        v = vectors()
        n_parts, lanes = v.parts, v.lanes
        rows = [b.add(x, b.mul(x_stride, ir.Constant(i64, t))) for t in range(n_tokens)]
        size = 4 if kind == F32 else 2

        def body(i: Value, accs: list[Value]) -> list[Value]:
            column = b.add(w, b.mul(i, w_stride))
            parts = []
            for p in range(n_parts):
                address = at(b, column, size * lanes * p)
                if kind == F32:
                    parts.append(load(b, address, vec(f32, lanes)))
                else:
                    widen = v.load_half if kind == F16 else v.load_bfloat
                    parts.append(widen(b, address))
            offset = b.mul(i, ir.Constant(i64, 4))
            after = []
            for t in range(n_tokens):
                a = broadcast(b, load(b, b.add(rows[t], offset), f32), lanes)
                after += [fma(b, parts[p], a, accs[t * n_parts + p]) for p in range(n_parts)]
            return after

        zero = splat(f32, lanes, 0.0)
        accs = counted_loop(b, n, [zero] * (n_tokens * n_parts), body)
        for k, acc in enumerate(accs):
            t, p = divmod(k, n_parts)
            row = b.add(out, b.mul(out_stride, ir.Constant(i64, t)))
            store(b, acc, at(b, row, 4 * lanes * p))
        return context.get_dummy_value()

    return types.void(fmt, tokens, *[types.int64] * 7), codegen
