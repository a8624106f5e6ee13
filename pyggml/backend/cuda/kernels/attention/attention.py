"""FLASH_ATTN_EXT: attention with a dense mask, with lists of cells or with ranges of keys.

Many tokens are computed by tensor cores (``attention_tile``) where keys, values and device allow;
so are a few tokens whose heads fill a block there, as in multi-head latent attention; else by
``decode_kernel``. A block of that takes one token, up to ``HEADS`` query heads of one KV head and
one split of the token's keys. ``lanes`` threads hold a key's row, 8 elements each, so that a warp
reads whole rows, 16 bytes a thread for F16; queries and sums of values stay in registers. Rows of
more than 256 columns are spread over several warps, whose parts of each score are added in shared
memory. Groups of lanes have their own online softmax over every ``n_groups``-th key; they are
merged in a fixed order, first in the warp, then in shared memory (at most 17 KiB), then those of
the splits by ``attention_merge``. The number of splits follows from the lengths of the lists and
from the device, never from begin and end, which blocks read on the device: a captured graph serves
every state of the cache. An entry that is no cell, or a token whose keys lie outside of its lists,
sets the queue's error, and reads nothing.

Scores are in powers of two: scale, bias and sinks are multiplied by log2(e).

Source: Dao et al., "FlashAttention-2"; Dao et al., "Flash-Decoding for long-context inference".
"""

import math
from functools import cache

from numba import cuda, float32, int32, int64

from .....dtype import GGMLType
from .....rounding import ceil_div, round_up
from .....tensor import Tensor
from ...codec import FLOAT_TYPES, decodable, element_loader
from ...driver import Grid
from ...intrin import device, divide, exp2, load_f32, load_i32, store_f32, store_i32
from ...kernel import U8, GpuKernel, f32, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from ..rows.softmax import MASKS, alibi_slope
from ..warp import FULL
from .attention_chunk import (
    LOG2E_F32,
    LOWEST,
    ONE,
    THREADS,
    ZERO,
    AttentionForm,
    attention_values,
    chunk_loader,
    finite,
    in_lists,
)
from .attention_tile import attend_tiles, n_slices, tile_keys, tile_rows, tileable

HEADS = 4  # query heads of a block: more would not fit the registers
MAX_DIM = 8 * THREADS  # of a head
MERGED = 256  # columns that a block merges
MAX_SPLITS = 64
FEW_TOKENS = 16  # up to so many, splits do not depend on how many there are


@device
def store_row(y, at, d, value, top, total, sink, has_sinks):
    """Store sum of values / sum of weights, where the latter includes the head's sink."""
    factor = ONE
    if has_sinks:
        new = sink if sink > top else top
        factor = exp2(top - finite(new))
        total = total * factor + exp2(sink - finite(new))
    store_f32(y, at + 4 * d, ZERO if total == ZERO else value * factor / total)


@cache
def decode_kernel(shape: AttentionForm) -> GpuKernel:
    """The kernel of one token and one split of its keys; see the module."""
    hd, hdv, heads, lanes, n_groups, threads = (
        shape.hd, shape.hdv, shape.heads, shape.lanes, shape.n_groups, shape.threads,
    )  # fmt: skip
    listed, ranged, branched = shape.listed, shape.ranged, shape.branched
    masked = shape.mask is not None
    capped, alibi, biased, unroll = shape.softcap, shape.alibi, shape.biased, shape.unroll
    load_q = chunk_loader(GGMLType.F32, hd, False)
    load_k = chunk_loader(shape.k, hd, shape.aligned)
    load_v = chunk_loader(shape.v, hdv, shape.aligned)
    load_mask = element_loader(shape.mask if masked else GGMLType.F32)
    row_warps, half = ceil_div(lanes, 32), min(lanes, 32) >> 1
    n_states = threads // 32 // row_warps  # after the merge in the warp
    n_tops, n_sums = n_states * heads, n_states * heads * hdv
    n_values, n_scores = heads * 8, heads * unroll
    n_parts = 2 * (threads // 32) * n_scores if row_warps > 1 else 1  # of scores, in two buffers

    @kernel(f"attention_{shape.name}", threads=threads, max_registers=255, unroll=True)
    def attention(
        q: U8, k: U8, v: U8, m: U8, sinks: U8, cells: U8, rows: U8, branches: U8, y: U8,
        parts: U8, n_tokens: i32, n_kv: i32, n_splits: i32, n_rep: i32, tiles: i32, r3: i32,
        q1: i64, q2: i64, q3: i64, k1: i64, k2: i64, k3: i64, v1: i64, v2: i64, v3: i64,
        y1: i64, y2: i64, y3: i64, m_ne2: i32, m_ne3: i32, m1: i64, m2: i64, m3: i64,
        distances: U8, farthest: i32, distances1: i64,
        cells2: i64, branches2: i64, rows1: i64, values: i64, scale: f32, softcap: f32, n2: i32,
        step_0: f32, step_1: f32, bias_scale: f32, has_sinks: i32, n_seq: i32, n_list: i32,
        n_entries: i32, n_branches: i32, error: U8, code: i32,
    ):  # fmt: skip
        all_tops = cuda.shared.array(n_tops, float32)
        all_totals = cuda.shared.array(n_tops, float32)
        all_sums = cuda.shared.array(n_sums, float32)
        score_parts = cuda.shared.array(n_parts, float32)
        t = int32(cuda.threadIdx.x)
        warp, lane = int32(t >> 5), int32(t & 31)
        group = divide(t, lanes)
        column = int32((t - group * lanes) * 8)
        state, buffer = divide(warp, row_warps), int32(0)
        row = divide(cuda.blockIdx.x, n_splits)
        split = int32(int32(cuda.blockIdx.x) - row * n_splits)
        i3 = divide(row, n_tokens)
        i1 = int32(row - i3 * n_tokens)
        kv_head = divide(cuda.blockIdx.y, tiles)
        tile = int32(int32(cuda.blockIdx.y) - kv_head * tiles)
        head = int32(kv_head * n_rep + tile * heads)
        n_heads = int32(n_rep - tile * heads)
        n_heads = n_heads if n_heads < heads else int32(heads)
        kv_3 = divide(i3, r3)
        k_at, v_at = kv_head * k2 + kv_3 * k3, kv_head * v2 + kv_3 * v3
        # the token's keys: entries [begin, end) of a list, which continues at `cut` in another one
        begin, end, position, cut = int32(0), int32(n_kv), int32(0), int32(0x7FFFFFFF)
        list_at, branch_at = int64(0), int64(0)
        if listed:
            at = i1 * rows1
            sequence, branch = load_i32(rows, at), int32(0)
            list_at = sequence * cells2
            begin, end = load_i32(rows, at + 4), load_i32(rows, at + 8)
            position = load_i32(rows, at + 12)
            if branched:
                branch = load_i32(rows, at + 20)
                if branch != 0:
                    cut = load_i32(rows, at + 16)
                    branch_at = (branch - 1) * branches2
            if begin < end and not in_lists(
                sequence, begin, end, cut, branch, n_seq, n_list, n_entries, n_branches
            ):
                store_i32(error, 0, code)
                end = begin
            if begin >= end:
                begin, end = int32(0), int32(0)
        n = int32(end - begin)
        step = int32(n_groups * unroll)
        per = int32(
            divide(int32(divide(int32(n + n_splits - 1), n_splits) + step - 1), step) * step
        )
        first = int64(begin) + int64(split) * per
        last = first + per
        last = last if last < end else int64(end)

        queries = cuda.local.array(n_values, float32)
        sums = cuda.local.array(n_values, float32)
        tops = cuda.local.array(heads, float32)
        totals = cuda.local.array(heads, float32)
        slopes = cuda.local.array(heads, float32)
        mask_rows = cuda.local.array(heads, int64)
        scores = cuda.local.array(n_scores, float32)
        found = cuda.local.array(unroll, int32)  # cells
        places = cuda.local.array(unroll, int32)  # their positions
        for h in range(heads):
            tops[h], totals[h], slopes[h], mask_rows[h] = LOWEST, ZERO, ONE, int64(0)
            if masked:
                i2 = int32(head + h)
                mask_rows[h] = i1 * m1 + int32(i2 - divide(i2, m_ne2) * m_ne2) * m2
                mask_rows[h] += int32(i3 - divide(i3, m_ne3) * m_ne3) * m3
            if alibi:
                slopes[h] = alibi_slope(int32(head + h), n2, step_0, step_1) * bias_scale
            q0, qa, qb, qc, qd, qe, qf, qg = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
            if h < n_heads and column < hd:
                q_at = i1 * q1 + (head + h) * q2 + i3 * q3
                q0, qa, qb, qc, qd, qe, qf, qg = load_q(q, q_at, column)
            queries[8 * h], queries[8 * h + 1] = q0 * scale, qa * scale
            queries[8 * h + 2], queries[8 * h + 3] = qb * scale, qc * scale
            queries[8 * h + 4], queries[8 * h + 5] = qd * scale, qe * scale
            queries[8 * h + 6], queries[8 * h + 7] = qf * scale, qg * scale
            for e in range(8):
                sums[8 * h + e] = ZERO

        while first < last:
            for u in range(unroll):
                i = int32(first + group + u * n_groups)
                found[u], places[u] = int32(i), int32(0)
                if listed and i < last:
                    if branched and i >= cut:
                        at = branch_at + int64(i - cut) * 8
                        found[u] = load_i32(branches, at)
                        if alibi or biased:
                            places[u] = load_i32(branches, at + 4)
                    elif ranged:
                        found[u], places[u] = int32(list_at + i), int32(i)
                    else:
                        at = list_at + int64(i) * 8
                        found[u] = load_i32(cells, at)
                        if alibi or biased:
                            places[u] = load_i32(cells, at + 4)
                    if found[u] < 0 or found[u] >= n_kv:
                        store_i32(error, 0, code)
                        found[u] = int32(0)
            for u in range(unroll):
                i = first + group + u * n_groups
                x0, x1, x2, x3, x4, x5, x6, x7 = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
                if i < last and column < hd:
                    x0, x1, x2, x3, x4, x5, x6, x7 = load_k(k, k_at + found[u] * k1, column)
                for h in range(heads):
                    low = queries[8 * h] * x0 + queries[8 * h + 1] * x1
                    low += queries[8 * h + 2] * x2 + queries[8 * h + 3] * x3
                    low += queries[8 * h + 4] * x4 + queries[8 * h + 5] * x5
                    scores[unroll * h + u] = low + queries[8 * h + 6] * x6 + queries[8 * h + 7] * x7
            for j in range(n_scores):
                d = half
                while d > 0:
                    scores[j] += cuda.shfl_xor_sync(FULL, scores[j], d)
                    d >>= 1
            if row_warps > 1:
                if lane == 0:
                    for j in range(n_scores):
                        score_parts[buffer + warp * n_scores + j] = scores[j]
                cuda.syncthreads()  # one a step: the next one's parts are in the other buffer
                for j in range(n_scores):
                    at = int32(buffer + state * row_warps * n_scores + j)
                    scores[j] = score_parts[at]
                    for w in range(1, row_warps):
                        scores[j] += score_parts[at + w * n_scores]
                buffer = int32(n_parts // 2 - buffer)
            for h in range(heads):
                top = tops[h]
                for u in range(unroll):
                    s = scores[unroll * h + u]
                    i = first + group + u * n_groups
                    if capped:
                        s = softcap * math.tanh(s)
                    if alibi and listed:
                        distance = float32(int32(position - places[u]))
                        s -= slopes[h] * abs(distance)
                    if biased:
                        d = min(max(int32(places[u] - position), int32(-farthest)), farthest)
                        at = int32(head + (h if h < n_heads else 0)) * distances1
                        s += load_f32(distances, at + (farthest + d) * 4) * LOG2E_F32
                    if masked and i < last:
                        s += slopes[h] * (load_mask(m, mask_rows[h], i) * LOG2E_F32)
                    s = s if i < last else LOWEST
                    top = s if s > top else top
                    scores[unroll * h + u] = s
                base = finite(top)
                factor = exp2(tops[h] - base)
                tops[h] = top
                total = ZERO
                for u in range(unroll):
                    p = exp2(scores[unroll * h + u] - base)
                    scores[unroll * h + u] = p
                    total += p
                totals[h] = totals[h] * factor + total
                for e in range(8):
                    sums[8 * h + e] *= factor
            for u in range(unroll):
                if first + group + u * n_groups < last and column < hdv:
                    x0, x1, x2, x3, x4, x5, x6, x7 = load_v(v, v_at + found[u] * v1, column)
                    for h in range(heads):
                        p = scores[unroll * h + u]
                        sums[8 * h] += p * x0
                        sums[8 * h + 1] += p * x1
                        sums[8 * h + 2] += p * x2
                        sums[8 * h + 3] += p * x3
                        sums[8 * h + 4] += p * x4
                        sums[8 * h + 5] += p * x5
                        sums[8 * h + 6] += p * x6
                        sums[8 * h + 7] += p * x7
            first += step

        for h in range(heads):
            d = lanes
            while d < 32:
                other = cuda.shfl_xor_sync(FULL, tops[h], d)
                top = other if other > tops[h] else tops[h]
                base = finite(top)
                mine, others = exp2(tops[h] - base), exp2(other - base)
                tops[h] = top
                totals[h] = totals[h] * mine + cuda.shfl_xor_sync(FULL, totals[h], d) * others
                for e in range(8):
                    x = cuda.shfl_xor_sync(FULL, sums[8 * h + e], d)
                    sums[8 * h + e] = sums[8 * h + e] * mine + x * others
                d <<= 1
            if lane < lanes:
                if column == 0:
                    all_tops[state * heads + h] = tops[h]
                    all_totals[state * heads + h] = totals[h]
                for e in range(8):
                    if column + e < hdv:
                        all_sums[(state * heads + h) * hdv + column + e] = sums[8 * h + e]
        cuda.syncthreads()
        e = int32(t)
        while e < n_heads * hdv:
            h = e // hdv
            d = int32(e - h * hdv)
            top = LOWEST
            for w in range(n_states):
                x = all_tops[w * heads + h]
                top = x if x > top else top
            base, total, value = finite(top), ZERO, ZERO
            for w in range(n_states):
                factor = exp2(all_tops[w * heads + h] - base)
                total += all_totals[w * heads + h] * factor
                value += all_sums[(w * heads + h) * hdv + d] * factor
            if n_splits == 1:
                at = (head + h) * y1 + i1 * y2 + i3 * y3
                sink = ZERO
                if has_sinks != 0:
                    sink = load_f32(sinks, (head + h) * 4) * LOG2E_F32
                store_row(y, at, d, value, top, total, sink, has_sinks != 0)
            else:
                part = (int64(row) * (n_rep * (cuda.gridDim.y // tiles)) + head + h) * n_splits
                part += split
                if d == 0:
                    store_f32(parts, part * 8, top)
                    store_f32(parts, part * 8 + 4, total)
                store_f32(parts, values + (part * hdv + d) * 4, value)
            e += int32(threads)

    return attention


@kernel(threads=MERGED, max_registers=64)
def attention_merge(
    parts: U8, sinks: U8, y: U8, n_tokens: i32, n_head: i32, n_splits: i32, hdv: i32, values: i64,
    y1: i64, y2: i64, y3: i64, has_sinks: i32,
):  # fmt: skip
    """A block for ``MERGED`` columns of a token's head: the states of its splits, in order."""
    d, row = int32(cuda.blockIdx.z * MERGED + cuda.threadIdx.x), int32(cuda.blockIdx.x)
    head = int32(cuda.blockIdx.y)
    if d >= hdv:
        return
    i3 = divide(row, n_tokens)
    i1 = int32(row - i3 * n_tokens)
    part = (int64(row) * n_head + head) * n_splits
    top = LOWEST
    for s in range(n_splits):
        x = load_f32(parts, (part + s) * 8)
        top = x if x > top else top
    base, total, value = finite(top), ZERO, ZERO
    for s in range(n_splits):
        factor = exp2(load_f32(parts, (part + s) * 8) - base)
        total += load_f32(parts, (part + s) * 8 + 4) * factor
        value += load_f32(parts, values + ((part + s) * hdv + d) * 4) * factor
    sink = ZERO
    if has_sinks != 0:
        sink = load_f32(sinks, head * 4) * LOG2E_F32
    store_row(y, head * y1 + i1 * y2 + i3 * y3, d, value, top, total, sink, has_sinks != 0)


def _supports(node: Tensor) -> bool:
    q, k, v, mask = (*node.src, None)[:4]
    return (
        max(q.ne[0], v.ne[0]) <= MAX_DIM
        and decodable(k.type)
        and decodable(v.type)
        and all(t.is_contiguous_rows() for t in (q, k, v))
        and k.ne[1] < 1 << 31
        and k.ne[2] * ceil_div(q.ne[2] // k.ne[2], HEADS) < 1 << 16
        and q.ne[2] < 1 << 16
        and (mask is None or (mask.type in MASKS and mask.is_contiguous_rows()))
    )


def _is_aligned(x: Tensor) -> bool:
    """Whether a chunk of 8 elements is a load of 16 bytes; quantized types have their own."""
    if x.type not in FLOAT_TYPES:
        return x.ne[0] % 8 == 0
    return x.ne[0] % 8 == 0 and x.data % 16 == 0 and all(x.nb[i] % 16 == 0 for i in (1, 2, 3))


def _shape(node: Tensor) -> AttentionForm:
    q, k, v, mask, _, cells, rows, branches, distances = (*node.src, *(None,) * 6)[:9]
    n_rep, p = q.ne[2] // k.ne[2], node.op_params
    return AttentionForm(
        k=k.type,
        v=v.type,
        hd=q.ne[0],
        hdv=v.ne[0],
        heads=min(HEADS, 1 << (n_rep - 1).bit_length()),
        listed=rows is not None,
        ranged=rows is not None and cells is None,
        branched=branches is not None,
        mask=None if mask is None else mask.type,
        softcap=p["logit_softcap"] != 0,
        alibi=p["max_bias"] != 0,
        biased=distances is not None,
        aligned=_is_aligned(k) and _is_aligned(v),
    )


def _n_splits(n_tokens: int, wanted: int, per_token: int, most: int) -> int:
    """In how many parts the keys of a token are divided: as many as occupy the device.

    Args:
        wanted: blocks that occupy it; per_token: blocks of a token without a division.
        most: the most parts that have keys.
    """
    alike = 1 if n_tokens <= FEW_TOKENS else n_tokens  # a token's sums do not depend on the others
    return min(ceil_div(wanted, per_token * alike), MAX_SPLITS, most)


@cache
def _most_states(n_tokens: int, wanted: int, per_token: int, most: int) -> int:
    """The most states of a head that any number of tokens up to ``n_tokens`` has to merge."""
    numbers = [(n, _n_splits(n, wanted, per_token, most)) for n in range(1, n_tokens + 1)]
    return max((n * splits for n, splits in numbers if splits > 1), default=0)


def _parts_bytes(n_parts: int, hdv: int) -> int:
    """Work memory of states, then of their sums."""
    return round_up(8 * n_parts, 256) + 4 * n_parts * hdv


@lowers("FLASH_ATTN_EXT", _supports)
def _lower_attention(lowering: GpuLowering, node: Tensor) -> None:
    values, shape = attention_values(lowering, node), _shape(node)
    k, sinks, cells = (values[name] for name in ("k", "sinks", "cells"))
    n_tokens, n_head, batch = node.src[0].ne[1:]
    n_kv_head, n_rep, hdv = k.ne[2], values["n_rep"], shape.hdv
    n_keys, n_lists = (k.ne[1], 1) if cells is None else cells.ne[1:3]
    tiled = tileable(lowering.device, shape)
    # a block has heads of one token only: so tiles serve a few tokens too
    always = tiled and n_slices(shape) > 1 and n_rep % tile_rows(shape) == 0
    heads, step = shape.heads, shape.n_groups * shape.unroll
    if always:
        heads, step = tile_rows(shape), tile_keys(shape)
    tiles = ceil_div(n_rep, heads)
    blocks = 2 * lowering.device.n_sm, n_kv_head * tiles
    most = ceil_div(n_keys, step)
    lowering.reserve(_parts_bytes(batch * n_head * _most_states(n_tokens, *blocks, most), hdv))
    many = n_tokens > FEW_TOKENS and n_tokens > 2 * n_lists  # of each sequence more than one
    if tiled and many and not always:
        attend_tiles(lowering, shape, values, {"parts": None, "n_splits": 1, "values": 0})
        return
    splits = _n_splits(n_tokens, *blocks, most)
    n_parts = batch * n_tokens * n_head * splits
    sums = round_up(8 * n_parts, 256)
    parts = lowering.take(_parts_bytes(n_parts, hdv)) if splits > 1 else None
    given = {"parts": parts, "n_splits": splits, "values": sums}
    if always:
        attend_tiles(lowering, shape, values, given)
    else:
        distances = (*node.src, *(None,) * 6)[8]
        farthest = 0 if distances is None else distances.ne[0] // 2
        call = decode_kernel(shape)(
            **values, **given, tiles=tiles, distances=distances, farthest=farthest
        )
        lowering.launch(call, Grid(batch * n_tokens * splits, n_kv_head * tiles))
    if splits > 1:
        call = attention_merge(
            parts=parts, sinks=sinks, y=node, n_tokens=n_tokens, n_head=n_head, n_splits=splits,
            hdv=hdv, values=sums, has_sinks=values["has_sinks"],
        )  # fmt: skip
        grid = Grid(batch * n_tokens, n_head, ceil_div(hdv, MERGED))
        lowering.launch(call, grid, threads=min(round_up(hdv, 32), MERGED))
