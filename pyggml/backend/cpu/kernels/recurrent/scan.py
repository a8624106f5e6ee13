"""SSM_SCAN: the states of Mamba 1 and 2, row by row.

Rows of a state are independent, so chunks are ranges of rows, with all tokens of a run one after
the other; a block of rows stays in L1 meanwhile. The bits of a token depend on its run alone.
Access: a token reads and writes each row of the state once, front to back.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from .....compiler.jit import CpuKernel, inline, kernel
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
    SRC7,
    data,
    f32_ptr,
    first_row,
    nb,
    ne,
    params_of,
)
from ...compile.lowering import CpuLowering, lowers
from ...simd.math import ONE, ZERO, exp_f32, log_f32
from ...simd.recurrent.recurrence import AHEAD, decayed_rows, exp_rows, prefetch_ahead
from .runs import carries, clear_padding, gap_free_rows, row_blocks, rows_block, states_of


class Scan(NamedTuple):
    """The values of SSM_SCAN."""

    K: int  # of ggml's form, states kept of a sequence
    block: int  # rows that stay in L1


@inline
def softplus(x):
    """log(1 + e^x)."""
    e = exp_f32(-abs(x))
    u = ONE + e  # rounded: log(u) e / (u - 1) is log(1 + e) nevertheless
    log1p = e if u == ONE else log_f32(u) * e / (u - ONE)
    return max(x, ZERO) + log1p


@inline
def _sources(node, t):
    """The addresses of x, dt, B, C and the result at a token."""
    n_t = ne(node, SRC1, 2)
    i3 = t // n_t
    i2 = t - i3 * n_t
    return (
        data(node, SRC1) + i2 * nb(node, SRC1, 2) + i3 * nb(node, SRC1, 3),
        data(node, SRC2) + i2 * nb(node, SRC2, 1) + i3 * nb(node, SRC2, 2),
        data(node, SRC4) + i2 * nb(node, SRC4, 2) + i3 * nb(node, SRC4, 3),
        data(node, SRC5) + i2 * nb(node, SRC5, 2) + i3 * nb(node, SRC5, 3),
        data(node, DST) + 4 * ne(node, SRC1, 0) * ne(node, SRC1, 1) * t,
    )


@inline
def _prefetch(node, t, block, x, dts, y):
    """Prefetch what the block reads and writes some tokens later."""
    if t + AHEAD < ne(node, SRC1, 2) * ne(node, SRC1, 3):
        rows, dim = block.end - block.begin, ne(node, SRC0, 1)
        prefetch_ahead(x + 4 * block.begin, rows, nb(node, SRC1, 2))
        prefetch_ahead(y + 4 * block.begin, rows, 4 * dim * ne(node, SRC0, 2))
        prefetch_ahead(dts + 4 * (block.begin // dim), rows // dim, nb(node, SRC2, 1))


@inline
def _by_head(node, t, before, after, block, scratch):
    """One decay for a head."""
    n, dim = ne(node, SRC0, 0), ne(node, SRC0, 1)
    per_group = ne(node, SRC0, 2) // ne(node, SRC4, 1)
    x, dts, u, q, y = _sources(node, t)
    _prefetch(node, t, block, x, dts, y)
    row = block.begin
    while row < block.end:
        h = row // dim
        end = min(block.end, (h + 1) * dim)
        g = h // per_group
        dt = f32_ptr(dts)[h]
        dt = softplus(dt)
        decay = exp_f32(dt * f32_ptr(data(node, SRC3) + 4 * h)[0])
        xs, factors = f32_ptr(x + 4 * row), f32_ptr(scratch)
        for i in range(end - row):
            factors[i] = xs[i] * dt
        at = 4 * n * (row - block.begin)
        decayed_rows(
            before + at, after + at, end - row, n, decay, scratch,
            u + g * nb(node, SRC4, 1), q + g * nb(node, SRC5, 1), y + 4 * row,
        )  # fmt: skip
        row = end


@inline
def _steps(dts, x, n, out):
    """Write n values of softplus(dt), then of x * softplus(dt), to ``out``."""
    dt, xs = f32_ptr(dts), f32_ptr(x)
    steps, factors = f32_ptr(out), f32_ptr(out + 4 * n)
    for i in range(n):
        steps[i] = softplus(dt[i])
    for i in range(n):
        factors[i] = xs[i] * steps[i]


@inline
def _by_row(node, t, before, after, block, scratch):
    """A decay for each element: heads are rows."""
    n, rows = ne(node, SRC0, 0), block.end - block.begin
    per_group = ne(node, SRC0, 2) // ne(node, SRC4, 1)
    x, dts, u, q, y = _sources(node, t)
    _prefetch(node, t, block, x, dts, y)
    _steps(dts + 4 * block.begin, x + 4 * block.begin, rows, scratch)
    decays = scratch + 8 * rows
    exp_rows(rows, n, scratch, data(node, SRC3) + 4 * n * block.begin, decays)
    row = block.begin
    while row < block.end:
        g = row // per_group
        end = min(block.end, (g + 1) * per_group)
        i = row - block.begin
        at = 4 * n * i
        decayed_rows(
            before + at, after + at, end - row, n, decays + at, scratch + 4 * (rows + i),
            u + g * nb(node, SRC4, 1), q + g * nb(node, SRC5, 1), y + 4 * row,
        )  # fmt: skip
        row = end


_carry_by_head, _carry_by_row = carries(_by_head), carries(_by_row)


@cache
def ssm_scan_kernel(decays_rows: bool) -> CpuKernel:
    """The kernel of Mamba 2 or, with a decay for each column of a row, of Mamba 1."""

    def ssm_scan(node, chunk, n_chunks, scratch):
        total, row_bytes = ne(node, SRC0, 1) * ne(node, SRC0, 2), 4 * ne(node, SRC0, 0)
        n_seqs = ne(node, SRC1, 3)
        n_tokens = ne(node, SRC1, 2) * n_seqs
        kept, K = data(node, DST) + 4 * total * n_tokens, params_of(node, Scan).K
        states = states_of(
            node, SRC0, SRC6, SRC7, n_tokens, n_seqs, row_bytes * total, kept, K
        )  # fmt: skip
        begin, end = first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)
        n_rows = params_of(node, Scan).block
        for top in range(begin, end, n_rows):
            bottom = min(end, top + n_rows)
            block = rows_block(top, bottom, row_bytes)
            if decays_rows:
                _carry_by_row(node, states, block, scratch)
            else:
                _carry_by_head(node, states, block, scratch)
        clear_padding(node, states, n_tokens, 4 * begin, 4 * (end - begin))

    return kernel(ssm_scan, "ssm_scan_rows_f32" if decays_rows else "ssm_scan_f32")


def _supports(node: Tensor) -> bool:
    """All but decays of rows (Mamba 1) in heads of several rows, which no model has."""
    s, A = node.src[0], node.src[3]
    return gap_free_rows(node) and (A.ne[0] == 1 or s.ne[1] == 1)


@lowers("SSM_SCAN", _supports)
def _lower_ssm_scan(lowering: CpuLowering, node: Tensor) -> None:
    s, x, _, A = node.src[:4]
    by_row, n = A.ne[0] != 1, s.ne[0]
    chunks, block = row_blocks(lowering, s.ne[1] * s.ne[2], n, x.ne[2] * x.ne[3])
    if by_row:
        block = max(1, block // 3)  # decays and A lie in L1 too
    lowering.launch(
        ssm_scan_kernel(by_row), node, Scan(node.op_params["K"], block), chunks,
        scratch=block * (8 + 4 * n * by_row),
    )  # fmt: skip
