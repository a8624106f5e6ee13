"""GATED_POOL, by columns: a token updates the maximum, sum and weighted sum of its group.

Access: a token reads and writes a block of columns of the state once, which stays in L1.
"""

from __future__ import annotations

from typing import NamedTuple

from .....compiler.jit import inline, kernel
from .....tensor import Tensor
from ...abi import (
    DST,
    SRC0,
    SRC1,
    SRC2,
    SRC3,
    SRC4,
    SRC5,
    SRC6,
    data,
    f32_ptr,
    i32_ptr,
    nb,
    ne,
    params_of,
)
from ...compile.lowering import CpuLowering, lowers
from ...simd.math import exp_f32
from ..span import columns
from .runs import StateBlock, carries, clear, copy, gap_free_rows, n_used, states_of

_WORK = 32  # of an element, in multiply-adds: two exponentials
_GRAIN = 8192  # multiply-adds of a chunk, at least


class GatedPool(NamedTuple):
    """The values of GATED_POOL."""

    halves: int  # 2 with overlap, else 1


@inline
def _add(top, total, mean, score, bias, x, n):
    """Add a token to the softmax of each column."""
    m, s, a = f32_ptr(top), f32_ptr(total), f32_ptr(mean)
    w, b, v = f32_ptr(score), f32_ptr(bias), f32_ptr(x)
    for i in range(n):
        z = w[i] + b[i]
        old = m[i] if s[i] > 0 else z
        new = max(old, z)
        f, g = exp_f32(old - new), exp_f32(z - new)
        m[i] = new
        s[i] = s[i] * f + g
        a[i] = a[i] * f + v[i] * g


@inline
def _write_mean(block, row, n, y):
    """The mean of a group without overlap; rows of the state are ``row`` bytes apart."""
    s, a, out = f32_ptr(block + row), f32_ptr(block + 2 * row), f32_ptr(y)
    for i in range(n):
        out[i] = a[i] / s[i]


@inline
def _write_merged(block, row, n, y):
    """The mean of a group's second halves and the first halves before it, if there are any."""
    m, s, a = f32_ptr(block + row), f32_ptr(block + 3 * row), f32_ptr(block + 5 * row)
    pm, ps, pa = f32_ptr(block + 6 * row), f32_ptr(block + 7 * row), f32_ptr(block + 8 * row)
    out = f32_ptr(y)
    for i in range(n):
        before = pm[i] if ps[i] > 0 else m[i]
        top = max(m[i], before)
        f, g = exp_f32(m[i] - top), exp_f32(before - top)
        out[i] = (a[i] * f + pa[i] * g) / (s[i] * f + ps[i] * g)


@inline
def _step(node, t, before, after, block, scratch):
    halves, row, n = params_of(node, GatedPool).halves, block.stride, block.n_bytes // 4
    place = i32_ptr(data(node, SRC3))[t] % ne(node, SRC2, 1)
    if before != after:
        for r in range(block.n_rows):
            copy(before + row * r, after + row * r, block.n_bytes)
    if place == 0:
        for r in range(3):
            if halves == 2:
                copy(after + row * 2 * r, after + row * (6 + r), block.n_bytes)
        for r in range(3 * halves):
            clear(after + row * r, block.n_bytes)
    for h in range(halves):
        column = block.offset + row * h
        _add(
            after + row * h, after + row * (halves + h), after + row * (2 * halves + h),
            data(node, SRC1) + nb(node, SRC1, 1) * t + column,
            data(node, SRC2) + nb(node, SRC2, 1) * place + column,
            data(node, SRC0) + nb(node, SRC0, 1) * t + column, n,
        )  # fmt: skip
    y = data(node, DST) + row * t + block.offset
    if place != ne(node, SRC2, 1) - 1:
        clear(y, block.n_bytes)
    elif halves == 2:
        _write_merged(after, row, n, y)
    else:
        _write_mean(after, row, n, y)


_carry = carries(_step)


@kernel
def gated_pool_f32(node, chunk, n_chunks, scratch):
    """A state is rows of maxima, sums and weighted sums; a result has as many columns as a row."""
    d, T, size = ne(node, DST, 0), ne(node, DST, 1), ne(node, SRC4, 0)
    begin, end = columns(d, chunk, n_chunks)
    states = states_of(node, SRC4, SRC5, SRC6, T, 1, 4 * size, 0, 1)
    block = StateBlock(begin, end, 4 * begin, size // d, 4 * d, 4 * (end - begin))
    _carry(node, states, block, scratch)
    for t in range(n_used(states.runs, states.n_runs), T):
        clear(data(node, DST) + 4 * d * t + block.offset, block.n_bytes)


@lowers("GATED_POOL", gap_free_rows)
def _lower_gated_pool(lowering: CpuLowering, node: Tensor) -> None:
    params = GatedPool(2 if node.op_params["overlap"] else 1)
    work = node.src[0].nelements * _WORK // _GRAIN
    chunks = max(1, min(node.ne[0] // 32, work, 8 * lowering.n_threads))
    lowering.launch(gated_pool_f32, node, params, chunks)
