"""FLASH_ATTN_EXT: one pass over the keys in fixed chunks of 256, for one token and for prompts.

A group of query rows (a block of tokens of one sequence times the heads of one KV head) reads the
same keys. Where its tokens are on several branches of a tree, that holds for the chunks before the
cut; each later chunk is read once for each run of tokens of one branch. For many rows, keys and
values are first packed as float32 columns of 16 into thread scratch; for few rows they are read
from the cache directly. Where 16 heads or more share a key, rows are computed in tiles of 16,
whatever their number (``simd/attention/attend_tile.py``). Where keys and values are Q8_0, scores
and sums of values are those of integers (``simd/attention/attend_codes.py``). For a few tokens,
chunks (where there are few, parts of the tokens too) are computed by several threads and merged in
a second launch. Each chunk gives a row's (max, sum, values[hdv]), float32 like the row's state, and
chunks are always merged in order: a row's bits depend on its keys alone, on none of these choices.

``check_lists`` runs before the first node that reads a set of lists, and ends the graph if an entry
is no cell or a token's keys lie outside of its lists; ``check_ranges`` does the same for ranges of
keys without lists. All later reads rely on that.
"""

from __future__ import annotations

from math import ceil, gcd
from typing import NamedTuple

import numpy as np

from .....compiler.jit import inline, inline_strict, kernel
from .....dtype import GGMLType, row_size
from .....ops.rows.softmax import alibi_steps
from .....rounding import ceil_div, round_up
from .....tensor import Tensor
from ...abi import (
    BAD_INDEX,
    DST,
    SRC0,
    SRC1,
    SRC2,
    SRC3,
    SRC4,
    SRC5,
    SRC6,
    SRC7,
    SRC8,
    data,
    f32_ptr,
    i32_ptr,
    i64_ptr,
    load_f32,
    nb,
    ne,
    params_of,
    set_error,
)
from ...compile.lowering import ANY_CHUNKS, CpuLowering, lowers
from ...compile.work import WorkRange
from ...simd.attention.attend import TILE_ROWS, prefetch_cells, pv_columns
from ...simd.attention.attend_tile import GROUP, STEP, VALUE_COLUMNS
from ...simd.element import load_f16
from ...simd.kv_row import KINDS
from ...simd.math import exp_f32, tanh_f32
from ...simd.total import max_f32, total_f32
from ...simd.vector import LINE
from ...tuning import tuning
from ...weights.layout import Q8_BLOCK
from ..quantize import quantize_row
from .attention_chunk import (
    CELLS_BYTES,
    CHUNK,
    DIRECT,
    KEY_BYTES,
    PACKED,
    ROUND_QUERY,
    S_STRIDE,
    TILES,
    TILES_BYTES,
    VALUE_BYTES,
    Later,
    are_codes,
    cache_traits,
    find_cells,
    interleave_kv,
    lines_of,
    load_tile,
    packed_column,
    pv_direct,
    pv_packed,
    pv_tiles,
    qk_direct,
    qk_packed,
    qk_tiles,
    round_row,
)

_ROWS = 126  # query rows of a block, at most (but always one token)
_CHUNKS = 8  # per thread, if there are enough tokens
_SPLITS = 4  # parts of the keys per thread, at least, where few tokens are split
_SPLIT_TOKENS = 16  # with at most so many tokens, chunks of keys are computed by several threads
_MERGED_BYTES = 1 << 17  # from which on a token's heads are merged by several threads
_DIRECT_ROWS = 24  # at most so many query rows read the cache directly
NO_CUT = 1 << 40  # of tokens that are on no branch


class Attention(NamedTuple):
    """The values of ``flash_attn`` and ``flash_attn_merge``."""

    scale: float
    bias_0: float  # ALiBi: base of the slopes of the first ``n_head_log2`` heads; 0: no ALiBi
    bias_1: float  # base of the slopes of the other heads
    n_head_log2: int
    softcap: float  # 0: none
    tokens: int  # of a block
    splits: int  # of the keys
    partials: int  # address of the state of each chunk of keys, 0: chunks are merged as they come
    quantize: int  # address of the quantized rows, or 0
    f16_mask: int
    direct_rows: int  # at most so many query rows read the cache directly
    codes: int  # whether the cache is read as codes, by rounded queries
    tiles: int  # of 16 query rows of a block, where many heads share keys; 0: none
    bias_scale: float
    traits: int


class Lists(NamedTuple):
    """The value of ``check_lists`` and ``check_ranges``."""

    n_cells: int


@kernel
def check_lists(node, chunk, n_chunks, scratch):
    """A list in each chunk, first those of sequences, then those of branches.

    Access: the rows of all tokens, then the entries of the list that a token attends to, and those
    between them, once. Sources: cells, rows, branches.
    """
    n_cells, n_list, n_seq = params_of(node, Lists).n_cells, ne(node, SRC0, 1), ne(node, SRC0, 2)
    branched = data(node, SRC2) != 0
    n_entries = ne(node, SRC2, 1) if branched else 0
    n_branches = ne(node, SRC2, 2) if branched else 0
    begins, ends, cuts = n_list, 0, n_list  # the least begin and cut of the list's tokens
    for t in range(ne(node, SRC1, 1)):
        row = i32_ptr(data(node, SRC1) + t * nb(node, SRC1, 1))
        sequence, begin, end = row[0], row[1], row[2]
        if begin >= end:
            continue
        cut = row[4] if branched else 0
        branch = row[5] if branched else 0
        known = sequence >= 0 and sequence < n_seq and branch >= 0 and branch <= n_branches
        if not known or begin < 0 or end > n_list:
            set_error(node, BAD_INDEX)
            return
        if branch != 0 and (cut < 0 or cut > n_list or cut % CHUNK != 0):
            set_error(node, BAD_INDEX)
            return
        if sequence == chunk:
            begins = min(begins, begin)
            ends = max(ends, end if branch == 0 else min(end, cut))
        elif branch != 0 and branch + n_seq == chunk + 1:
            cuts, ends = min(cuts, cut), max(ends, end)
    entries = data(node, SRC0) + chunk * nb(node, SRC0, 2)
    if chunk >= n_seq:
        entries = data(node, SRC2) + (chunk - n_seq) * nb(node, SRC2, 2)
        begins, ends = 0, max(ends - cuts, 0)
        if ends > n_entries:
            set_error(node, BAD_INDEX)
            return
    pairs, bad = i32_ptr(entries), 0
    for i in range(begins, ends):
        cell = pairs[2 * i]
        if cell < 0 or cell >= n_cells:
            bad += 1
    if bad != 0:
        set_error(node, BAD_INDEX)


@kernel
def check_ranges(node, chunk, n_chunks, scratch):
    """The rows of all tokens, once. Source: rows."""
    n_keys, bad = params_of(node, Lists).n_cells, 0
    for t in range(ne(node, SRC0, 1)):
        row = i32_ptr(data(node, SRC0) + t * nb(node, SRC0, 1))
        first, begin, end = row[0], row[1], row[2]
        if begin < end and (first < 0 or begin < 0 or end > n_keys or first > n_keys - end):
            bad += 1
    if bad != 0:
        set_error(node, BAD_INDEX)


@inline
def list_begin(node, t):
    """The first key that token ``t`` attends to, as a place in its sequence's list; 0 for none."""
    if data(node, SRC6) == 0:
        return 0
    row = i32_ptr(data(node, SRC6) + t * nb(node, SRC6, 1))
    return row[1] if row[1] < row[2] else 0


@inline
def list_end(node, t):
    """The place after the last key that token ``t`` attends to; 0 for none."""
    if data(node, SRC6) == 0:
        return ne(node, SRC1, 1)
    row = i32_ptr(data(node, SRC6) + t * nb(node, SRC6, 1))
    return row[2] if row[1] < row[2] else 0


@inline
def sequence_of(node, t):
    """The sequence of token ``t``; of ranges the first key of its text."""
    rows = data(node, SRC6)
    return i32_ptr(rows + t * nb(node, SRC6, 1))[0] if rows != 0 else 0


@inline
def first_key(node, t):
    """The row of keys and values that is place 0 of token ``t``'s keys; 0 with lists."""
    return sequence_of(node, t) if data(node, SRC5) == 0 else 0


@inline
def branch_of(node, t):
    """The number of token ``t``'s branch, 0 where it has none."""
    rows = data(node, SRC6)
    return i32_ptr(rows + t * nb(node, SRC6, 1))[5] if data(node, SRC7) != 0 else 0


@inline
def branch_cut(node, t):
    """How many entries of its sequence's list token ``t`` of a branch reads."""
    return i32_ptr(data(node, SRC6) + t * nb(node, SRC6, 1))[4]


@inline
def list_entries(node, t, first):
    """The address of token ``t``'s entry (cell, position) ``first``; 0: without lists."""
    if data(node, SRC5) == 0:
        return 0
    branch = branch_of(node, t)
    if branch != 0:
        cut = branch_cut(node, t)
        if first >= cut:
            lists = data(node, SRC7) + (branch - 1) * nb(node, SRC7, 2)
            return lists + (first - cut) * nb(node, SRC7, 1)
    return data(node, SRC5) + sequence_of(node, t) * nb(node, SRC5, 2) + first * nb(node, SRC5, 1)


@inline
def same_list_end(node, t, after, first, shared):
    """The token after the last one that reads chunk ``first`` from the same list as ``t``."""
    if first < shared:
        return after
    end, branch = t + 1, branch_of(node, t)
    while end < after and branch_of(node, end) == branch:
        end += 1
    return end


@inline
def keys_end(node, a, b, hi, first, shared):
    """The place after the last key that tokens [a, b) read from the list of chunk ``first``."""
    if first < shared:
        return min(hi, shared)
    end = list_end(node, a)
    for t in range(a + 1, b):
        end = max(end, list_end(node, t))
    return end


@inline
def load_queries(node, queries, t, head, n_rep, stream, r0, r1, direct):
    """Copy the query rows [r0, r1) of a group that begins at token ``t`` and this head."""
    p, hd = params_of(node, Attention), ne(node, SRC0, 0)
    hd8 = (hd + 7) // 8 * 8
    for r in range(r0, r1):
        x = data(node, SRC0) + (t + r // n_rep) * nb(node, SRC0, 1)
        x += (head + r % n_rep) * nb(node, SRC0, 2) + stream * nb(node, SRC0, 3)
        y = f32_ptr(queries + r * 4 * hd8)
        if direct or p.codes != 0:
            for d in range(hd8):
                y[d] = f32_ptr(x)[d] if d < hd else np.float32(0)
            if p.codes != 0:
                round_row(p.traits, queries + r * 4 * hd8, hd)
        else:
            for i in range(hd // 8):
                for lane in range(8):  # unrolled: LLVM would make slow gathers
                    y[packed_column(lane, hd8) + i] = f32_ptr(x)[8 * i + lane]
            for d in range(hd // 8 * 8, hd8):
                y[packed_column(d, hd8)] = f32_ptr(x)[d] if d < hd else np.float32(0)


@inline
def load_tiles(node, traits, table, queries, t, head, n_rep, stream, n_rows):
    """Load the query rows of a group in tiles; the last one fills up its tile."""
    hd = ne(node, SRC0, 0)
    for first in range(0, n_rows, GROUP):
        for i in range(2 * GROUP):  # a tile, and the next one, which is prefetched
            r = min(first + i, n_rows - 1)
            x = data(node, SRC0) + (t + r // n_rep) * nb(node, SRC0, 1)
            x += (head + r % n_rep) * nb(node, SRC0, 2) + stream * nb(node, SRC0, 3)
            i64_ptr(table)[i] = x
        load_tile(traits, table, hd, queries + first * 4 * hd)


@inline
def bias(node, s, t, head, entries, stream, first, n):
    """Apply scale, soft-cap, ALiBi, biases by distance and mask to one row of scores, in place.

    Args:
        entries: from ``list_entries``, of the chunk that begins at key ``first``.
    """
    p = params_of(node, Attention)
    scale, cap = p.scale, p.softcap
    x = f32_ptr(s)
    for j in range(n):
        x[j] *= scale
    if cap != 0:
        for j in range(n):
            x[j] = cap * tanh_f32(x[j] / cap)
    slope = np.float32(1)
    m0, n2 = p.bias_0, p.n_head_log2
    if m0 != 0:
        if head < n2:
            slope = np.float32(m0 ** np.float32(head + 1))
        else:
            slope = np.float32(p.bias_1 ** np.float32(2 * (head - n2) + 1))
        slope *= p.bias_scale
        if data(node, SRC6) != 0:
            position = i32_ptr(data(node, SRC6) + t * nb(node, SRC6, 1))[3]
            if entries == 0:
                for j in range(n):
                    x[j] -= slope * np.float32(abs(position - (first + j)))
            else:
                pairs = i32_ptr(entries)
                for j in range(n):
                    x[j] -= slope * np.float32(abs(position - pairs[2 * j + 1]))
    if data(node, SRC8) != 0:
        position = i32_ptr(data(node, SRC6) + t * nb(node, SRC6, 1))[3]
        by_distance = f32_ptr(data(node, SRC8) + head * nb(node, SRC8, 1))
        last = ne(node, SRC8, 0) - 1
        zero = last // 2 - position  # the entry of a key at position 0
        if entries == 0:
            for j in range(n):
                x[j] += by_distance[min(max(zero + first + j, 0), last)]
        else:
            keys = i32_ptr(entries)
            for j in range(n):
                x[j] += by_distance[min(max(zero + keys[2 * j + 1], 0), last)]
    if data(node, SRC3) != 0:
        mask = data(node, SRC3) + t * nb(node, SRC3, 1)
        mask += (head % ne(node, SRC3, 2)) * nb(node, SRC3, 2)
        mask += (stream % ne(node, SRC3, 3)) * nb(node, SRC3, 3)
        if p.f16_mask != 0:
            for j in range(n):
                x[j] += slope * load_f16(mask + 2 * (first + j))
        else:
            for j in range(n):
                x[j] += slope * load_f32(mask + 4 * (first + j))


@inline
def softmax(s, lo, hi, n):
    """Replace scores by exp(s - max) over [lo, hi) and 0 elsewhere up to ``n``; (max, sum)."""
    x = f32_ptr(s)
    for j in range(lo):
        x[j] = np.float32(-np.inf)
    for j in range(hi, n):
        x[j] = np.float32(-np.inf)
    top = max_f32(s, n)
    if top == np.float32(-np.inf):
        total = total_f32(s, n)
        for j in range(n):
            x[j] = np.float32(0)
        return (total, total) if total != total else (top, np.float32(0))  # NaN must travel
    for j in range(n):
        x[j] = exp_f32(x[j] - top)
    return top, total_f32(s, n)


@inline_strict
def clear(state, hdv):
    """Set the state of a row before any key."""
    y = f32_ptr(state)
    y[0] = np.float32(-np.inf)
    for d in range(1, hdv + 2):
        y[d] = np.float32(0)


@inline_strict
def start(state, top, total, values, hdv):
    """Set the state of a row after one chunk, with the bits of ``clear`` and then ``merge``."""
    if top == np.float32(-np.inf):
        clear(state, hdv)
        return
    y = f32_ptr(state)
    y[0], y[1] = top, total
    for d in range(hdv):
        y[2 + d] = f32_ptr(values)[d]


@inline_strict
def merge(state, top, total, values, hdv):
    """Merge a chunk's (max, sum, values) into a row's state, which is the same."""
    if top == np.float32(-np.inf):
        return
    y = f32_ptr(state)
    x = f32_ptr(values)
    new = max(y[0], top)
    before = exp_f32(y[0] - new)
    now = exp_f32(top - new)
    y[0] = new
    y[1] = y[1] * before + total * now
    for d in range(hdv):
        y[2 + d] = y[2 + d] * before + x[d] * now


@inline_strict
def finish(node, state, t, head, stream, hdv):
    """Write a row of the result: values / sum, where the sum includes the head's sink."""
    x = f32_ptr(state)
    scale, total = np.float32(1), x[1]
    if data(node, SRC4) != 0:
        sink = f32_ptr(data(node, SRC4))[head]
        new = max(x[0], sink)
        scale = exp_f32(x[0] - new)
        total = total * scale + exp_f32(sink - new)
    y = f32_ptr(
        data(node, DST) + head * nb(node, DST, 1) + t * nb(node, DST, 2) + stream * nb(node, DST, 3)
    )
    factor = np.float32(0) if total == 0 else scale / total
    for d in range(hdv):
        y[d] = x[2 + d] * factor


@inline
def partial(node, stream, token, head, chunk, state_bytes):
    """The address of a row's state for one chunk, where threads share the chunks."""
    keys = ne(node, SRC5, 1) if data(node, SRC5) != 0 else ne(node, SRC1, 1)
    row = (stream * ne(node, SRC0, 1) + token) * ne(node, SRC0, 2) + head
    n_chunks = (keys + CHUNK - 1) // CHUNK
    return params_of(node, Attention).partials + (row * n_chunks + chunk) * state_bytes


@kernel
def flash_attn(node, chunk, n_chunks, scratch):
    """Blocks of query rows, times KV heads, streams and splits of the chunks.

    Scratch: cells, scores and sums of a tile's rows, then queries, states and packed chunk.
    """
    p = params_of(node, Attention)
    traits = p.traits
    n_tokens, n_kv_head = ne(node, SRC0, 1), ne(node, SRC1, 2)
    n_rep = ne(node, SRC0, 2) // n_kv_head
    hd, hdv = ne(node, SRC0, 0), ne(node, SRC2, 0)
    hd8, padded = (hd + 7) // 8 * 8, (hdv + 15) // 16 * 16
    block, splits, partials = p.tokens, p.splits, p.partials
    blocks = (n_tokens + block - 1) // block
    split, rest = chunk % splits, chunk // splits
    kv_head, rest = rest % n_kv_head, rest // n_kv_head
    stream = rest // blocks
    kv_stream = stream // (ne(node, SRC0, 3) // ne(node, SRC1, 3))
    first_k = data(node, SRC1) + kv_head * nb(node, SRC1, 2) + kv_stream * nb(node, SRC1, 3)
    next_head = kv_head + (chunk + 1) // splits - chunk // splits
    next_k = first_k  # keys of the head that this thread most likely takes next
    if next_head < n_kv_head:
        next_k += (next_head - kv_head) * nb(node, SRC1, 2)
    first_v = data(node, SRC2) + kv_head * nb(node, SRC2, 2) + kv_stream * nb(node, SRC2, 3)
    nb_k, nb_v = nb(node, SRC1, 1), nb(node, SRC2, 1)
    cells = scratch
    later = cells + CELLS_BYTES  # cells of the next chunk of keys
    scores = later + CELLS_BYTES
    tile = max(TILE_ROWS, p.tiles * GROUP)
    sums = scores + tile * S_STRIDE
    tops = f32_ptr(sums + tile * 4 * padded)  # maxima of a tile's rows, then their sums
    panel = sums + tile * 4 * padded + (8 * tile + 63) // 64 * 64
    queries = panel + (TILES_BYTES if p.tiles != 0 else 0)
    states = queries + (block * n_rep + tile - 1) * 4 * hd8
    state_bytes = 4 * (hdv + 2)
    keys = (states + block * n_rep * state_bytes + 63) // 64 * 64
    values = keys + hd8 * S_STRIDE
    t = rest % blocks * block
    stop = min(n_tokens, t + block)
    while t < stop:
        sequence = sequence_of(node, t)
        k, v = first_k + first_key(node, t) * nb_k, first_v + first_key(node, t) * nb_v
        lo, hi, after = list_begin(node, t), list_end(node, t), t + 1
        shared = branch_cut(node, t) if branch_of(node, t) != 0 else NO_CUT
        while after < stop and sequence_of(node, after) == sequence:
            if list_end(node, after) > list_begin(node, after):
                lo = min(lo, list_begin(node, after)) if hi > lo else list_begin(node, after)
                hi = max(hi, list_end(node, after))
                if branch_of(node, after) != 0:
                    shared = min(shared, branch_cut(node, after))
            after += 1
        n_met = (hi + CHUNK - 1) // CHUNK - lo // CHUNK  # chunks
        # Splits share the chunks; where these are fewer, also the tokens, a pass or more in each
        group, group_end, key_parts = after - t, after, max(1, min(splits, n_met))
        passes = (group * n_rep + TILE_ROWS - 1) // TILE_ROWS
        token_parts = min(splits // key_parts, min(group, passes))
        place = split - (splits - key_parts * token_parts)  # the first splits have nothing to do
        if place < 0:
            t = group_end
            continue
        part, of_keys = place // key_parts, place % key_parts
        after = t + group * (part + 1) // token_parts
        t += group * part // token_parts
        n_rows, head_0 = (after - t) * n_rep, kv_head * n_rep
        c = lo // CHUNK + n_met * of_keys // key_parts
        end_chunk = lo // CHUNK + n_met * (of_keys + 1) // key_parts
        a, b, hi_of = t, after, hi  # tokens that read the chunk from one list, and their last key
        if c < end_chunk:
            first = c * CHUNK
            b = same_list_end(node, a, after, first, shared)
            hi_of = keys_end(node, a, b, hi, first, shared)
            if hi_of > first:
                find_cells(list_entries(node, a, first), first, lo, hi_of, cells)
            if p.tiles != 0:
                load_tiles(node, traits, later, queries, t, head_0, n_rep, stream, n_rows)
            else:
                load_queries(
                    node, queries, t, head_0, n_rep, stream, 0, n_rows, n_rows <= p.direct_rows
                )
                y = f32_ptr(queries + n_rows * 4 * hd8)
                for d in range((TILE_ROWS - 1) * hd8):  # the last tile reads TILE_ROWS rows
                    y[d] = 0
        if partials == 0:
            for r in range(n_rows):
                clear(states + r * state_bytes, hdv)
        while c < end_chunk:
            first = c * CHUNK
            r0, r1, n_keys = (a - t) * n_rep, (b - t) * n_rep, min(CHUNK, hi_of - first)
            direct = r1 - r0 <= p.direct_rows
            if r1 - r0 < n_rows and p.tiles == 0:
                load_queries(node, queries, t, head_0, n_rep, stream, r0, r1, direct)
            next_c, next_a, next_b, next_hi = c, b, after, hi
            if b == after:
                next_c, next_a = c + 1, t
            next_cells, keys_after, n_prefetched = later, k, 0
            if next_c < end_chunk:
                begin = next_c * CHUNK
                next_b = same_list_end(node, next_a, after, begin, shared)
                next_hi = keys_end(node, next_a, next_b, hi, begin, shared)
                if next_hi > begin:
                    find_cells(list_entries(node, next_a, begin), begin, lo, next_hi, later)
                    n_prefetched = min(CHUNK, next_hi - begin)
                else:
                    next_cells = cells
            elif group_end < stop and list_begin(node, group_end) < list_end(node, group_end):
                low = list_begin(node, group_end)
                begin, end = low // CHUNK * CHUNK, list_end(node, group_end)
                find_cells(list_entries(node, group_end, begin), begin, low, end, later)
                keys_after = first_k + first_key(node, group_end) * nb_k
            elif of_keys + 1 < key_parts:  # of the next split, which this thread most likely takes
                begin = end_chunk * CHUNK
                end = keys_end(
                    node, t, same_list_end(node, t, after, begin, shared), hi, begin, shared
                )
                if end > begin:
                    find_cells(list_entries(node, t, begin), begin, lo, end, later)
                else:
                    next_cells = cells
            else:
                next_cells, keys_after = cells, next_k
            if n_keys > 0 and not direct and p.tiles == 0:
                interleave_kv(traits, k, nb_k, v, nb_v, cells, n_keys, hd, hdv, keys, values)
            lines_k, lines_v = lines_of(traits, KEY_BYTES, hd), lines_of(traits, VALUE_BYTES, hdv)
            if first_v == first_k and nb_v == nb_k:
                lines_v = 0  # values are columns of the keys
            step, n_passes, done, skipped = TILE_ROWS, 1, 0, 0
            if p.tiles != 0:  # one pass; its first tile may begin with rows of other tokens
                step, skipped = r1 - r0, r0 % GROUP
            elif direct:  # as few passes as possible, about equal
                n_passes = (r1 - r0 + step - 1) // step
                step = (r1 - r0 + n_passes - 1) // n_passes
            n_tiles = (skipped + step + GROUP - 1) // GROUP
            entries = list_entries(node, a, first)
            r = r0
            while r < r1:
                rows = min(step, r1 - r)
                n = min(n_keys, list_end(node, t + r // n_rep) - first)
                for i in range(1, rows):
                    n = max(n, min(n_keys, list_end(node, t + (r + i) // n_rep) - first))
                query = queries + (r - skipped) * 4 * hd8
                n64 = (n + 63) // 64 * 64
                # Of the keys of the next chunk each pass prefetches a part
                line, end_line = lines_k * done // n_passes, lines_k * (done + 1) // n_passes
                if n > 0 and p.tiles != 0 and lines_v == 0:
                    line = lines_k // 2
                    qk_tiles(
                        traits, n_tiles, query, hd, k, nb_k, cells, n, scores, panel,
                        next_cells, keys_after, nb_k, 0, line, lines_k,
                    )  # fmt: skip
                elif n > 0 and p.tiles != 0:
                    qk_tiles(
                        traits, n_tiles, query, hd, k, nb_k, cells, n, scores, panel,
                        cells, v, nb_v, 0, lines_v, lines_v,
                    )  # fmt: skip
                elif n > 0 and direct:
                    lines = lines_v if r == r0 else 0
                    qk_direct(traits, rows, query, hd, k, nb_k, cells, n, scores, v, nb_v, lines)
                elif n > 0:
                    j = n_prefetched * (r - r0) // (r1 - r0)  # prefetch a share of the next chunk
                    share = n_prefetched * (r + rows - r0) // (r1 - r0) - j
                    prefetch_cells(k, nb_k, later + 8 * j, share, lines_k)
                    prefetch_cells(v, nb_v, later + 8 * j, share, lines_v)
                    qk_packed(traits, query, hd8, keys, n, scores)
                for i in range(rows if n > 0 else 0):
                    token, head = t + (r + i) // n_rep, head_0 + (r + i) % n_rep
                    s = scores + (skipped + i) * S_STRIDE
                    begin = min(max(list_begin(node, token) - first, 0), n)
                    end = min(list_end(node, token) - first, n)
                    bias(node, s, token, head, entries, stream, first, n)
                    tops[i], tops[tile + i] = softmax(s, begin, max(begin, end), n64)
                if n > 0 and p.tiles != 0:
                    pv_tiles(
                        traits, n_tiles, scores, v, nb_v, cells, n, hdv, sums, panel,
                        next_cells, keys_after, nb_k, line, end_line - line, lines_k,
                    )  # fmt: skip
                elif n > 0 and direct:
                    pv_direct(
                        traits, rows, scores, v, nb_v, cells, n, hdv, sums, padded,
                        next_cells, keys_after + 64 * line, nb_k, end_line - line,
                    )  # fmt: skip
                elif n > 0:
                    pv_packed(traits, scores, values, n, sums, padded)
                for i in range(rows):
                    token, head = t + (r + i) // n_rep, head_0 + (r + i) % n_rep
                    state, found = states + (r + i) * state_bytes, sums + (skipped + i) * 4 * padded
                    if partials != 0:
                        state = partial(node, stream, token, head, c, state_bytes)
                        if n > 0:
                            start(state, tops[i], tops[tile + i], found, hdv)
                        else:
                            clear(state, hdv)
                    elif n > 0:
                        merge(state, tops[i], tops[tile + i], found, hdv)
                r, done = r + rows, done + 1
            cells, later = later, cells
            c, a, b, hi_of = next_c, next_a, next_b, next_hi
        if partials == 0:
            for r in range(n_rows):
                head = head_0 + r % n_rep
                finish(node, states + r * state_bytes, t + r // n_rep, head, stream, hdv)
        t = group_end


@kernel
def flash_attn_merge(node, chunk, n_chunks, scratch):
    """Heads of a token: merge their chunks in order; then quantize them if a matmul reads them."""
    n_tokens, n_head, hdv = ne(node, SRC0, 1), ne(node, SRC0, 2), ne(node, SRC2, 0)
    n_parts = n_chunks // (n_tokens * ne(node, SRC0, 3))
    part, place = chunk % n_parts, chunk // n_parts
    token, stream = place % n_tokens, place // n_tokens
    head_0, head_1 = n_head * part // n_parts, n_head * (part + 1) // n_parts
    state_bytes = 4 * (hdv + 2)
    lo, hi = list_begin(node, token), list_end(node, token)
    first = lo // CHUNK
    end = (hi + CHUNK - 1) // CHUNK if hi > lo else first
    for head in range(head_0, head_1):
        state = partial(node, stream, token, head, first, state_bytes)  # of the only chunk
        if end != first + 1:
            state = scratch
            clear(state, hdv)
            for c in range(first, end):
                of_chunk = partial(node, stream, token, head, c, state_bytes)
                x = f32_ptr(of_chunk)
                merge(state, x[0], x[1], of_chunk + 8, hdv)
        finish(node, state, token, head, stream, hdv)
    quantize = params_of(node, Attention).quantize
    if quantize != 0:
        row = data(node, DST) + token * nb(node, DST, 2) + stream * nb(node, DST, 3)
        blocks = quantize + (place * n_head + head_0) * hdv // 32 * Q8_BLOCK
        quantize_row(row + 4 * head_0 * hdv, blocks, (head_1 - head_0) * hdv)


def _supports(node: Tensor) -> bool:
    q, k, v, mask = node.src[:4]
    return (
        q.type is GGMLType.F32
        and k.type in KINDS
        and v.type in KINDS
        and all(t.is_contiguous_rows() for t in (q, k, v))
        and k.ne[2] == v.ne[2]
        and (mask is None or mask.type in (GGMLType.F16, GGMLType.F32))
    )


def checked_rows(lowering: CpuLowering, node: Tensor, *lists: Tensor | None) -> WorkRange:
    """An empty work range that the launch which checks the rows writes: readers wait for it."""
    n_cells = node.src[1].ne[1]
    key = ("lists", *lists, n_cells)
    known = lowering.known(key, *lists)
    if known is not None:
        return known
    made = lowering.take(1)
    made.keep()
    cells, rows, branches = lists
    if cells is None:
        lowering.launch(check_ranges, node, Lists(n_cells), 1, src=(rows,), writes=made)
        return lowering.remember(key, made)
    n_lists = cells.ne[2] + (0 if branches is None else branches.ne[2])
    lowering.launch(check_lists, node, Lists(n_cells), n_lists, src=lists, writes=made)
    return lowering.remember(key, made)


def _prefetched(k: Tensor, v: Tensor) -> tuple[Later, Later]:
    """What the steps of keys prefetch in tiles, and those of values; see ``flash_attn``."""
    keys, values = (ceil_div(row_size(x.type, x.ne[0]), LINE) for x in (k, v))  # lines of a row

    def of_steps(columns: int, lines: int, share: float) -> Later:
        return Later(ceil(STEP * STEP / columns * share), lines)

    if v.data == k.data and v.nb[1] == k.nb[1]:  # values are columns of the keys
        half = keys // 2 / keys
        return of_steps(k.ne[0], keys, half), of_steps(v.ne[0], keys, 1 - half)
    return of_steps(k.ne[0], values, 1), of_steps(v.ne[0], keys, 1)


@lowers("FLASH_ATTN_EXT", _supports)
def _lower_flash_attn(lowering: CpuLowering, node: Tensor) -> None:
    q, k, v, mask, _, cells, rows, branches = (*node.src, *(None,) * 8)[:8]
    n_tokens, n_head, n_streams = q.ne[1:]
    n_kv_head, hd, hdv = k.ne[2], q.ne[0], v.ne[0]
    n_rep, hd8, padded = n_head // n_kv_head, round_up(hd, 8), round_up(hdv, 16)
    n_chunks = ceil_div(cells.ne[1] if cells is not None else k.ne[1], CHUNK)
    max_bias = node.op_params["max_bias"]
    n2, step_0, step_1 = alibi_steps(n_head, max_bias)
    tail_k, tail_v = hd % 8, round_up(hdv % 32, 8)
    in_place = hd >= 8 and hdv >= tail_v  # whether the direct form can read the cache
    tails = (tail_k, tail_v) if in_place else (0, 0)
    in_tiles = n_rep >= GROUP and hd % STEP == 0 and hdv % VALUE_COLUMNS == 0
    codes = not in_tiles and are_codes(int(k.type), int(v.type))
    alone = in_place and n_tokens == 1  # always direct
    partial_bytes = n_streams * n_tokens * n_head * n_chunks * 4 * (hdv + 2)
    split = n_tokens <= _SPLIT_TOKENS and n_chunks > 1 and partial_bytes <= 1 << 26
    share = ceil_div(n_tokens * n_kv_head * n_streams, _CHUNKS * lowering.n_threads)
    most = _ROWS if not in_tiles else round_up(_ROWS, GROUP)
    block = (
        ceil_div(n_tokens, lowering.n_threads)
        if split
        else max(1, min(n_tokens, most // n_rep, share))
    )
    tiles = ceil_div(block * n_rep, GROUP) if in_tiles else 0
    blocks = ceil_div(n_tokens, block)
    splits, n_tasks = 1, n_kv_head * blocks * n_streams
    if split:
        # so that threads get equally many
        even = lowering.n_threads // gcd(lowering.n_threads, n_tasks)
        splits = min(round_up(ceil_div(_SPLITS * lowering.n_threads, n_tasks), even), n_chunks)
    checked = [] if rows is None else [checked_rows(lowering, node, cells, rows, branches)]
    parts = lowering.take(partial_bytes) if split else None
    direct_rows = 1 << 30 if alone else _DIRECT_ROWS if in_place else 0
    functions = DIRECT if direct_rows >= block * n_rep else (*DIRECT, *PACKED)
    functions = TILES if tiles else (*functions, ROUND_QUERY) if codes else functions
    later = _prefetched(k, v)
    traits = cache_traits(int(k.type), int(v.type), pv_columns(hdv), *tails, later, tuning())
    params = Attention(
        scale=node.op_params["scale"],
        bias_0=2.0**step_0 if max_bias else 0.0,
        bias_1=2.0**step_1 if max_bias else 0.0,
        n_head_log2=n2,
        softcap=node.op_params["logit_softcap"],
        tokens=block,
        splits=splits,
        partials=parts.address if parts else 0,
        quantize=0,
        f16_mask=mask is not None and mask.type is GGMLType.F16,
        direct_rows=direct_rows,
        codes=codes,
        tiles=tiles,
        bias_scale=node.op_params["bias_scale"],
        traits=lowering.traits(traits, *functions),
    )
    scratch = 2 * CELLS_BYTES + 4 * (
        max(TILE_ROWS, GROUP * tiles) * (CHUNK + padded + hd8 + 2)
        + block * n_rep * (hd8 + hdv + 2) + 48
        + (0 if alone or tiles else CHUNK * (hd8 + padded))
    ) + (TILES_BYTES if tiles else 0)  # fmt: skip
    lowering.launch(
        flash_attn,
        node,
        params,
        splits * n_tasks,
        work=checked,
        writes=parts,
        scratch=scratch,
        variant="_".join(x.type.name.lower() for x in (k, v)),
    )
    if parts:
        n_rows = n_tokens * n_streams
        merges = 1  # parts of the heads; of a quantized row each has whole blocks
        if hdv % 32 == 0 and partial_bytes >= _MERGED_BYTES:
            merges = max(1, min(lowering.n_threads // n_rows, n_head))
        lowering.launch(
            flash_attn_merge,
            node,
            params,
            n_rows * merges,
            work=[parts],
            scratch=scratch,
            quantizes=n_head * hdv % 32 == 0,
            replicate=ANY_CHUNKS,
        )
