"""One query row of attention: the keys it attends to, softmax over a chunk, and online merging.

    top, total = softmax(scores, begin, end, n)    # in jitted code: over one chunk of keys
    merge(state, top, total, values, hdv)          # state: max, sum, values[hdv], all float32
    finish(node, state, token, head, stream, hdv)

Each chunk of keys gives (max, sum, values), and chunks are merged in order, so a row's bits depend
on its keys alone. For jitted code.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....jit import inline, inline_strict
from ..abi import (
    DST,
    SRC0,
    SRC1,
    SRC3,
    SRC4,
    SRC5,
    SRC6,
    SRC7,
    data,
    f32_ptr,
    i32_ptr,
    load_f32,
    nb,
    ne,
    params_of,
)
from ..simd.element import load_f16
from ..simd.math import exp_f32, tanh_f32
from ..simd.total import max_f32, total_f32

CHUNK = 256  # keys


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
    bias_scale: float
    traits: int


@inline
def list_begin(node, t):
    """The first key that token ``t`` attends to, as a place in its sequence's list."""
    rows = data(node, SRC6)
    return i32_ptr(rows + t * nb(node, SRC6, 1))[1] if rows != 0 else 0


@inline
def list_end(node, t):
    """The place after the last key that token ``t`` attends to."""
    rows = data(node, SRC6)
    return i32_ptr(rows + t * nb(node, SRC6, 1))[2] if rows != 0 else ne(node, SRC1, 1)


@inline
def sequence_of(node, t):
    """The sequence of token ``t``."""
    rows = data(node, SRC6)
    return i32_ptr(rows + t * nb(node, SRC6, 1))[0] if rows != 0 else 0


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
def bias(node, s, t, head, entries, stream, first, n):
    """Apply scale, soft-cap, ALiBi and mask to one row of scores, in place.

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
            pairs = i32_ptr(entries)
            for j in range(n):
                x[j] -= slope * np.float32(abs(position - pairs[2 * j + 1]))
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
