"""SSM_CONV and TOKEN_SHIFT: each channel over time.

Chunks are ranges of channels, with all tokens of a run one after the other. Weights are transposed
first, so that channels lie side by side.
Access: the rows of a token's taps, from L1 but for the newest.
"""

from __future__ import annotations

import numpy as np

from .....compiler.jit import inline, kernel
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
    i64_ptr,
    nb,
    ne,
)
from ...compile.lowering import CpuLowering, lowers
from ...simd.recurrent.causal_conv import convolve, transpose_taps
from ...simd.recurrent.recurrence import AHEAD, prefetch_ahead
from ..span import columns
from .runs import clear, copy, gap_free_rows, n_used, run_of, slot_after


@inline
def _row(before, x, row_bytes, stride, past, k):
    """The address of row ``k`` among those of the state and then of the run."""
    return before + row_bytes * k if k < past else x + stride * (k - past)


@kernel
def ssm_conv_f32(node, chunk, n_chunks, scratch):
    """ggml's form: time is contiguous."""
    width, n_t, n_s = ne(node, SRC1, 0), ne(node, DST, 1), ne(node, DST, 2)
    begin, end = columns(ne(node, DST, 0), chunk, n_chunks)
    for s in range(n_s):
        for t in range(n_t):
            y = f32_ptr(data(node, DST) + t * nb(node, DST, 1) + s * nb(node, DST, 2))
            for c in range(begin, end):
                x = f32_ptr(
                    data(node, SRC0) + 4 * t + c * nb(node, SRC0, 1) + s * nb(node, SRC0, 2)
                )
                w = f32_ptr(data(node, SRC1) + 4 * c * width)
                total = np.float32(0)
                for j in range(width):
                    total += x[j] * w[j]
                y[c] = total


@kernel
def ssm_conv_slots_f32(node, chunk, n_chunks, scratch):
    """The form with runs: channels are contiguous, a state is the rows of the last tokens."""
    width, channels, n_tokens = ne(node, SRC1, 0), ne(node, DST, 0), ne(node, DST, 1)
    begin, end = columns(channels, chunk, n_chunks)
    n, row_bytes, past = end - begin, 4 * channels, width - 1
    x0, y0 = data(node, SRC0) + 4 * begin, data(node, DST) + 4 * begin
    states, size = data(node, SRC2) + 4 * begin, row_bytes * past
    runs, slots, n_runs = data(node, SRC3), data(node, SRC4), ne(node, SRC3, 1)
    rows, taps, stride = i64_ptr(scratch), scratch + 8 * width, nb(node, SRC0, 1)
    transpose_taps(data(node, SRC1) + 4 * width * begin, n, width, taps)
    for r in range(n_runs):
        first, length, slot = run_of(runs, r, 0, 0)
        if length <= 0:
            continue
        last, x = first + length - 1, x0 + stride * first
        after = states + size * slot_after(slots, last)
        before = states + size * slot
        if slot < 0:
            before = after
            for k in range(past):
                clear(after + row_bytes * k, 4 * n)
        for t in range(length):
            y = y0 + nb(node, DST, 1) * (first + t)
            if t + AHEAD < length:
                prefetch_ahead(x + stride * t, n, stride)
                prefetch_ahead(y, n, nb(node, DST, 1))
            for j in range(width):
                rows[j] = _row(before, x, row_bytes, stride, past, t + j)
            convolve(scratch, taps, n, width, y)
        for t in range(length):  # the last one may write over the state before
            if slot_after(slots, first + t) >= 0:
                target = states + size * slot_after(slots, first + t)
                for i in range(past):
                    row = _row(before, x, row_bytes, stride, past, t + 1 + i)
                    copy(row, target + row_bytes * i, 4 * n)
    for t in range(n_used(runs, n_runs), n_tokens):
        clear(y0 + nb(node, DST, 1) * t, 4 * n)


@lowers("SSM_CONV", gap_free_rows)
def _lower_ssm_conv(lowering: CpuLowering, node: Tensor) -> None:
    channels, width = node.ne[0], node.src[1].ne[0]
    chunks = max(1, min(channels // 32, node.nelements * width // 8192, 8 * lowering.n_threads))
    kernel = ssm_conv_f32 if node.src[2] is None else ssm_conv_slots_f32
    n = channels // chunks + 64  # at most, of a chunk
    lowering.launch(kernel, node, chunks=chunks, scratch=width * (8 + 4 * n))


@kernel
def token_shift_f32(node, chunk, n_chunks, scratch):
    """A state is the row of the last token."""
    n_tokens = ne(node, DST, 1)
    begin, end = columns(ne(node, DST, 0), chunk, n_chunks)
    n, size = 4 * (end - begin), 4 * ne(node, DST, 0)
    x, y = data(node, SRC0) + 4 * begin, data(node, DST) + 4 * begin
    states = data(node, SRC1) + 4 * begin
    runs, slots, n_runs = data(node, SRC2), data(node, SRC3), ne(node, SRC2, 1)
    for r in range(n_runs):
        first, length, slot = run_of(runs, r, 0, 0)
        if length <= 0:
            continue
        if slot < 0:
            clear(y + size * first, n)
        else:
            copy(states + size * slot, y + size * first, n)
        for t in range(first, first + length):
            row = x + nb(node, SRC0, 1) * t
            if t + 1 < first + length:
                copy(row, y + size * (t + 1), n)
            if slot_after(slots, t) >= 0:
                copy(row, states + size * slot_after(slots, t), n)
    for t in range(n_used(runs, n_runs), n_tokens):
        clear(y + size * t, n)


@lowers("TOKEN_SHIFT", gap_free_rows)
def _lower_token_shift(lowering: CpuLowering, node: Tensor) -> None:
    chunks = max(1, min(node.ne[0] // 32, node.nelements // 8192, 8 * lowering.n_threads))
    lowering.launch(token_shift_f32, node, chunks=chunks)
