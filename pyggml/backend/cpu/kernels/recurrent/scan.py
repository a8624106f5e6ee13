"""SSM_SCAN: the states of Mamba 1 and 2, row by row.

Rows of a state are independent, so chunks are ranges of rows, with all tokens of a run one after
the other; a block of rows stays in L1 meanwhile. The bits of a token depend on its run alone.
Access: a token reads and writes each row of the state once, front to back.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

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
from ...simd.math import ZERO, exp_f32
from ...simd.recurrence import decayed_row
from .runs import clear, copy, gap_free_rows, n_used, run_of, slot_after

_BLOCK_BYTES = 16384  # of a state: half of a small L1


class Scan(NamedTuple):
    """The values of SSM_SCAN."""

    K: int  # of ggml's form, states kept of a sequence


@inline
def softplus(x):
    """log(1 + e^x)."""
    return np.float32(max(x, ZERO) + math.log1p(exp_f32(-abs(x))))


@cache
def ssm_scan_kernel(decays_rows: bool) -> CpuKernel:
    """The kernel of Mamba 2 or, with a decay for each column of a row, of Mamba 1."""

    def ssm_scan(node, chunk, n_chunks, scratch):
        d_state, dim, n_head = ne(node, SRC0, 0), ne(node, SRC0, 1), ne(node, SRC0, 2)
        n_t, slots, K = ne(node, SRC1, 2), data(node, SRC7), params_of(node, Scan).K
        runs = data(node, SRC6) if slots != 0 else 0
        ids = data(node, SRC6) if slots == 0 else 0
        n_runs = ne(node, SRC6, 1) if slots != 0 else ne(node, SRC1, 3)
        total, row_bytes = dim * n_head, 4 * d_state
        size = row_bytes * total
        kept = data(node, DST) + 4 * total * n_t * ne(node, SRC1, 3)  # of ggml's form
        per_group = n_head // ne(node, SRC4, 1)
        begin, end = first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)
        block = max(1, _BLOCK_BYTES // row_bytes)
        for r in range(n_runs):
            first, n, slot = run_of(runs, r, n_t, ids)
            if n <= 0:
                continue
            last = first + n - 1
            if slots != 0:
                after = data(node, SRC0) + size * slot_after(slots, last)
            else:
                after = kept + size * r
            for top in range(begin, end, block):
                bottom = min(end, top + block)
                before = data(node, SRC0) + size * slot
                if slot < 0:
                    clear(after + row_bytes * top, row_bytes * (bottom - top))
                    before = after
                for t in range(first, last + 1):
                    i3 = t // n_t
                    i2 = t - i3 * n_t
                    x = f32_ptr(data(node, SRC1) + i2 * nb(node, SRC1, 2) + i3 * nb(node, SRC1, 3))
                    dts = f32_ptr(
                        data(node, SRC2) + i2 * nb(node, SRC2, 1) + i3 * nb(node, SRC2, 2)
                    )
                    u = data(node, SRC4) + i2 * nb(node, SRC4, 2) + i3 * nb(node, SRC4, 3)
                    q = data(node, SRC5) + i2 * nb(node, SRC5, 2) + i3 * nb(node, SRC5, 3)
                    y = f32_ptr(data(node, DST) + 4 * total * t)
                    head = -1
                    dt, decay = ZERO, ZERO
                    for row in range(top, bottom):
                        h = row // dim
                        if h != head:
                            head = h
                            dt = dts[h]
                            dt = softplus(dt)
                            a = f32_ptr(data(node, SRC3) + nb(node, SRC3, 1) * h)
                            if decays_rows:
                                decays = f32_ptr(scratch)
                                for i in range(d_state):
                                    decays[i] = exp_f32(dt * a[i])
                            else:
                                decay = exp_f32(dt * a[0])
                        old, new, g = (
                            before + row_bytes * row,
                            after + row_bytes * row,
                            h // per_group,
                        )
                        ug, qg = u + g * nb(node, SRC4, 1), q + g * nb(node, SRC5, 1)
                        if decays_rows:
                            y[row] = decayed_row(old, new, d_state, scratch, x[row] * dt, ug, qg)
                        else:
                            y[row] = decayed_row(old, new, d_state, decay, x[row] * dt, ug, qg)
                    before, snapshot = after, 0
                    if slots != 0:
                        if t != last and slot_after(slots, t) >= 0:
                            snapshot = data(node, SRC0) + size * slot_after(slots, t)
                    elif t != last and last - t < K:
                        snapshot = kept + size * ((last - t) * n_runs + r)
                    if snapshot != 0:
                        offset = row_bytes * top
                        copy(after + offset, snapshot + offset, row_bytes * (bottom - top))
        if slots != 0:  # padding
            for t in range(n_used(runs, n_runs), n_t):
                clear(data(node, DST) + 4 * (total * t + begin), 4 * (end - begin))

    return kernel(ssm_scan, "ssm_scan_rows_f32" if decays_rows else "ssm_scan_f32")


@lowers("SSM_SCAN", gap_free_rows)
def _lower_ssm_scan(lowering: CpuLowering, node: Tensor) -> None:
    s, x, _, A = node.src[:4]
    rows, tokens = s.ne[1] * s.ne[2], x.ne[2] * x.ne[3]
    elements = s.ne[0] * rows * tokens
    chunks = max(1, min(rows, elements // 8192, 8 * lowering.n_threads))
    by_row = A.ne[0] != 1 or s.ne[0] == 1
    lowering.launch(
        ssm_scan_kernel(by_row), node, Scan(node.op_params["K"]), chunks, scratch=4 * s.ne[0]
    )
