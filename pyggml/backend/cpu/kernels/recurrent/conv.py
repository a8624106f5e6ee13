"""SSM_CONV and TOKEN_SHIFT: each channel over time.

Chunks are ranges of channels, with all tokens of a run one after the other. Weights are transposed
first, so that channels lie side by side. A bias and SiLU are applied as a row is written, and the
result is quantized at the end.
Access: the rows of a token's taps, from L1 but for the newest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .....compiler.jit import inline, inline_strict, kernel
from .....dtype import GGMLType
from .....tensor import Tensor
from ....common.memory import overlap
from ...abi import (
    DST,
    SRC0,
    SRC1,
    SRC2,
    SRC3,
    SRC4,
    SRC5,
    data,
    f32_ptr,
    i64_ptr,
    nb,
    ne,
    params_of,
)
from ...compile.lowering import CpuLowering, fuses, lowers
from ...simd.recurrent.causal_conv import convolve, transpose_taps
from ...simd.recurrent.recurrence import AHEAD, prefetch_ahead
from ...weights.layout import Q8_BLOCK
from ..elementwise.elementwise import IDS, function
from ..quantize import BLOCK, quantize_row
from ..span import columns
from .runs import clear, copy, gap_free_rows, n_used, run_of, slot_after

_ADD, _SILU = IDS["add"], IDS["silu"]
_SILU_MACS = 8  # which take as long as one SiLU
_GRAIN = 4096  # multiply-adds of a chunk, at least: one token waits for memory, too


class SlotsConv(NamedTuple):
    """The values of SSM_CONV with runs."""

    silu: int = 0  # whether the results are those of SiLU
    quantize: int = 0  # address of the quantized rows, or 0


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


@inline_strict
def _finish(y, n, bias, silu):
    """Add the bias, unless it is 0, and apply SiLU."""
    x, b = f32_ptr(y), f32_ptr(bias)
    if bias != 0:
        for i in range(n):
            x[i] = function(_ADD, x[i], b[i])
    if silu != 0:
        for i in range(n):
            x[i] = function(_SILU, x[i])


@kernel
def ssm_conv_slots_f32(node, chunk, n_chunks, scratch):
    """The form with runs: channels are contiguous, a state is the rows of the last tokens.

    SRC5: a bias, or nothing.
    """
    width, channels, n_tokens = ne(node, SRC1, 0), ne(node, DST, 0), ne(node, DST, 1)
    begin, end = columns(channels, chunk, n_chunks)
    n, row_bytes, past = end - begin, 4 * channels, width - 1
    x0, y0 = data(node, SRC0) + 4 * begin, data(node, DST) + 4 * begin
    states, size = data(node, SRC2) + 4 * begin, row_bytes * past
    runs, slots, n_runs = data(node, SRC3), data(node, SRC4), ne(node, SRC3, 1)
    rows, taps, stride = i64_ptr(scratch), scratch + 8 * width, nb(node, SRC0, 1)
    p = params_of(node, SlotsConv)
    silu, out = p.silu, p.quantize
    bias = data(node, SRC5) + 4 * begin if data(node, SRC5) != 0 else 0
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
            _finish(y, n, bias, silu)
        for t in range(length):  # the last one may write over the state before
            if slot_after(slots, first + t) >= 0:
                target = states + size * slot_after(slots, first + t)
                for i in range(past):
                    row = _row(before, x, row_bytes, stride, past, t + 1 + i)
                    copy(row, target + row_bytes * i, 4 * n)
    for t in range(n_used(runs, n_runs), n_tokens):
        clear(y0 + nb(node, DST, 1) * t, 4 * n)
        _finish(y0 + nb(node, DST, 1) * t, n, bias, silu)
    if out != 0:
        for t in range(n_tokens):
            block = (t * channels + begin) // BLOCK
            quantize_row(y0 + nb(node, DST, 1) * t, out + block * Q8_BLOCK, n)


def _chunks(lowering: CpuLowering, node: Tensor, width: int) -> tuple[int, int]:
    """(chunks, bytes of scratch); ``width``: the work of an element in multiply-adds."""
    channels, n_taps = node.ne[0], node.src[1].ne[0]
    chunks = max(1, min(channels // 32, node.nelements * width // _GRAIN, 8 * lowering.n_threads))
    return chunks, n_taps * (8 + 4 * (channels // chunks + 64))


@lowers("SSM_CONV", gap_free_rows)
def _lower_ssm_conv(lowering: CpuLowering, node: Tensor) -> None:
    chunks, scratch = _chunks(lowering, node, node.src[1].ne[0])
    if node.src[2] is None:
        lowering.launch(ssm_conv_f32, node, chunks=chunks, scratch=scratch)
    else:
        _launch_slots(lowering, node, node, None, SlotsConv(), (chunks, scratch))


def _launch_slots(
    lowering: CpuLowering, conv: Tensor, dst: Tensor, bias: Tensor | None, params: SlotsConv,
    cut: tuple[int, int],
) -> None:  # fmt: skip
    chunks, scratch = cut
    lowering.launch(
        ssm_conv_slots_f32, dst, params, chunks, src=(*conv.src[:5], bias), scratch=scratch,
        quantizes=True, updater=conv,
    )  # fmt: skip


@fuses("SSM_CONV", "ADD", "UNARY")  # registered before the shorter pattern
@fuses("SSM_CONV", "UNARY")
def _lower_ssm_conv_silu(lowering: CpuLowering, conv: Tensor, *more: Tensor) -> bool:
    """The convolution of runs, a bias and SiLU in one launch."""
    silu, before, bias = more[-1], conv, None
    if conv.src[2] is None or not gap_free_rows(conv) or silu.op_params["kind"] != "silu":
        return False
    if len(more) == 2:
        before, bias = more[0], more[0].src[1]
        row = (conv.ne[0], 1, 1, 1)
        if before.src[0] is not conv or bias.ne != row or not bias.is_contiguous():
            return False
    used = (*conv.src, bias)
    if silu.src[0] is not before or any(s is not None and overlap(silu, s) for s in used):
        return False
    if any(t is not None and t.type is not GGMLType.F32 for t in (silu, before, bias)):
        return False
    cut = _chunks(lowering, conv, conv.src[1].ne[0] + _SILU_MACS)
    _launch_slots(lowering, conv, silu, bias, SlotsConv(silu=1), cut)
    return True


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
