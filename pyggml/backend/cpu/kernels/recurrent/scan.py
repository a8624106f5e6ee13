"""SSM_SCAN: the states of Mamba 1 and 2, row by row.

Rows of a state are independent, so chunks are ranges of rows, with all tokens of a run one after
the other; a block of rows stays in L1 meanwhile. The bits of a token depend on its run alone. The
product with D and the gate after a scan are part of its launch.
Access: a token reads and writes each row of the state once, front to back.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from .....compiler.jit import CpuKernel, inline, inline_strict, kernel
from .....tensor import Tensor
from ....common.lowering import all_f32
from ....common.memory import overlap
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
    SRC8,
    SRC9,
    data,
    f32_ptr,
    i64_ptr,
    nb,
    ne,
    params_of,
)
from ...compile.lowering import CpuLowering, fuses, lowers
from ...simd.math import exp_f32
from ...simd.recurrent.recurrence import AHEAD, decayed_rows, exp_rows, prefetch_ahead
from ...weights.layout import Q8_BLOCK
from ..elementwise.elementwise import IDS, function
from ..quantize import BLOCK, quantize_row
from ..span import columns
from .runs import (
    carries,
    clear_padding,
    gap_free_rows,
    row_blocks,
    rows_block,
    state_ahead,
    states_of,
)

_ADD, _MUL = IDS["add"], IDS["mul"]
_SILU, _SOFTPLUS = IDS["silu"], IDS["softplus"]


class Scan(NamedTuple):
    """The values of SSM_SCAN."""

    K: int  # of ggml's form, states kept of a sequence
    block: int  # rows that stay in L1
    ahead: int  # bytes from a row of a state to what is prefetched
    quantize: int = 0  # address of the quantized rows, or 0


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
def _tables(node, scratch):
    """The address of the steps and decays of the first head of a chunk, after a block's factors."""
    return scratch + 8 + 4 * params_of(node, Scan).block


@inline
def _fill_tables(node, first, end, n_tokens, scratch):
    """Steps and decays of some heads for all tokens, before the tokens need them one by one."""
    i64_ptr(scratch)[0] = first
    for h in range(first, end):
        table = _tables(node, scratch) + 8 * n_tokens * (h - first)
        steps, decays = f32_ptr(table), f32_ptr(table + 4 * n_tokens)
        for t in range(n_tokens):
            steps[t] = f32_ptr(_sources(node, t)[1])[h]
        for t in range(n_tokens):
            steps[t] = function(_SOFTPLUS, steps[t])
        rate = f32_ptr(data(node, SRC3))[h]
        for t in range(n_tokens):
            decays[t] = exp_f32(steps[t] * rate)


@inline
def _by_head(node, t, before, after, block, scratch):
    """One decay for a head."""
    n, dim, n_tokens = ne(node, SRC0, 0), ne(node, SRC0, 1), ne(node, SRC1, 2) * ne(node, SRC1, 3)
    per_group = ne(node, SRC0, 2) // ne(node, SRC4, 1)
    ahead = params_of(node, Scan).ahead
    x, dts, u, q, y = _sources(node, t)
    _prefetch(node, t, block, x, dts, y)
    first, row = i64_ptr(scratch)[0] + 0, block.begin
    while row < block.end:
        h = row // dim
        end = min(block.end, (h + 1) * dim)
        g = h // per_group
        table = _tables(node, scratch) + 8 * n_tokens * (h - first) + 4 * t
        dt, decay = f32_ptr(table)[0] + 0, f32_ptr(table + 4 * n_tokens)[0] + 0
        xs, factors = f32_ptr(x + 4 * row), f32_ptr(scratch + 8)
        for i in range(end - row):
            factors[i] = xs[i] * dt
        at = 4 * n * (row - block.begin)
        decayed_rows(
            before + at, after + at, end - row, n, decay, scratch + 8,
            u + g * nb(node, SRC4, 1), q + g * nb(node, SRC5, 1), y + 4 * row, ahead,
        )  # fmt: skip
        row = end


@inline
def _steps(dts, x, n, out):
    """Write n values of softplus(dt), then of x * softplus(dt), to ``out``."""
    dt, xs = f32_ptr(dts), f32_ptr(x)
    steps, factors = f32_ptr(out), f32_ptr(out + 4 * n)
    for i in range(n):
        steps[i] = function(_SOFTPLUS, dt[i])
    for i in range(n):
        factors[i] = xs[i] * steps[i]


@inline
def _by_row(node, t, before, after, block, scratch):
    """A decay for each element: heads are rows."""
    n, rows = ne(node, SRC0, 0), block.end - block.begin
    per_group = ne(node, SRC0, 2) // ne(node, SRC4, 1)
    ahead = params_of(node, Scan).ahead
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
            u + g * nb(node, SRC4, 1), q + g * nb(node, SRC5, 1), y + 4 * row, ahead,
        )  # fmt: skip
        row = end


@inline_strict
def _add_skip(node, x, y, begin, end):
    """``y += D x`` for rows of a token; D: SRC8, a number for each head."""
    dim, xs, ys, ds = ne(node, SRC0, 1), f32_ptr(x), f32_ptr(y), f32_ptr(data(node, SRC8))
    row = begin
    while row < end:
        h = row // dim
        stop, d = min(end, dim * (h + 1)), ds[h]
        for i in range(row, stop):
            ys[i] = function(_ADD, ys[i], function(_MUL, xs[i], d))
        row = stop


@inline_strict
def _gate(z, y, begin, end):
    """``y *= silu(z)``."""
    zs, ys = f32_ptr(z), f32_ptr(y)
    for i in range(begin, end):
        ys[i] = function(_SILU, zs[i]) * ys[i]


@inline_strict
def _finish(node, begin, end, n_tokens):
    """The nodes after the scan for some rows of all tokens."""
    total, out = ne(node, DST, 0) * ne(node, DST, 1), params_of(node, Scan).quantize
    for t in range(n_tokens):
        y = data(node, DST) + 4 * total * t
        _add_skip(node, data(node, SRC1) + nb(node, SRC1, 2) * t, y, begin, end)
        _gate(data(node, SRC9) + nb(node, SRC9, 2) * t, y, begin, end)
        if out != 0:
            block = (total * t + begin) // BLOCK
            quantize_row(y + 4 * begin, out + block * Q8_BLOCK, end - begin)


_carry_by_head, _carry_by_row = carries(_by_head), carries(_by_row)


@cache
def ssm_scan_kernel(decays_rows: bool) -> CpuKernel:
    """The kernel of Mamba 2 or, with a decay for each column of a row, of Mamba 1.

    SRC8, SRC9: D and the gate z of ``silu(z) (y + D x)``, or nothing.
    """

    def ssm_scan(node, chunk, n_chunks, scratch):
        total, row_bytes = ne(node, SRC0, 1) * ne(node, SRC0, 2), 4 * ne(node, SRC0, 0)
        n_seqs = ne(node, SRC1, 3)
        n_tokens = ne(node, SRC1, 2) * n_seqs
        kept, K = data(node, DST) + 4 * total * n_tokens, params_of(node, Scan).K
        states = states_of(
            node, SRC0, SRC6, SRC7, n_tokens, n_seqs, row_bytes * total, kept, K
        )  # fmt: skip
        begin, end = columns(total, chunk, n_chunks)
        if not decays_rows:
            dim = ne(node, SRC0, 1)
            _fill_tables(node, begin // dim, (end + dim - 1) // dim, n_tokens, scratch)
        n_rows = params_of(node, Scan).block
        for top in range(begin, end, n_rows):
            bottom = min(end, top + n_rows)
            block = rows_block(top, bottom, row_bytes)
            if decays_rows:
                _carry_by_row(node, states, block, scratch)
            else:
                _carry_by_head(node, states, block, scratch)
        clear_padding(node, states, n_tokens, 4 * begin, 4 * (end - begin))
        if data(node, SRC9) != 0:
            _finish(node, begin, end, n_tokens)

    return kernel(ssm_scan, "ssm_scan_rows_f32" if decays_rows else "ssm_scan_f32")


def _supports(node: Tensor) -> bool:
    """All but decays of rows (Mamba 1) in heads of several rows, which no model has."""
    s, A = node.src[0], node.src[3]
    return gap_free_rows(node) and (A.ne[0] == 1 or s.ne[1] == 1)


@lowers("SSM_SCAN", _supports)
def _lower_ssm_scan(lowering: CpuLowering, node: Tensor) -> None:
    _launch(lowering, node, node, None, None)


def _launch(
    lowering: CpuLowering, scan: Tensor, dst: Tensor, D: Tensor | None, z: Tensor | None
) -> None:
    s, x, _, A = scan.src[:4]
    by_row, n = A.ne[0] != 1, s.ne[0]
    n_rows, n_tokens = s.ne[1] * s.ne[2], x.ne[2] * x.ne[3]
    chunks, block = row_blocks(lowering, n_rows, n, n_tokens)
    if by_row:
        block = max(1, block // 3)  # decays and A lie in L1 too
        scratch = block * (8 + 4 * n)
    else:
        heads = (n_rows // chunks + 64) // s.ne[1] + 2  # at most, of a chunk
        scratch = 8 + 4 * block + 8 * n_tokens * heads
    src = (*(*scan.src, None)[:8], D, z)
    params = Scan(scan.op_params["K"], block, state_ahead(n_tokens))
    lowering.launch(
        ssm_scan_kernel(by_row), dst, params, chunks, src=src, scratch=scratch,
        quantizes=z is not None, updater=scan,
    )  # fmt: skip


@fuses("SSM_SCAN", "MUL", "ADD", "UNARY", "MUL")
def _lower_gated_scan(
    lowering: CpuLowering, scan: Tensor, skip: Tensor, total: Tensor, gate: Tensor, gated: Tensor
) -> bool:
    """``silu(z) (y + D x)`` in the launch of the scan with runs."""
    heads, (x, D), z = scan.src[1], skip.src, gate.src[0]
    more = (skip, total, gate, gated)
    if scan.src[7] is None or not _supports(scan) or not all(map(all_f32, more)):
        return False
    if total.src != (scan, skip) or gated.src != (total, gate) or gate.op_params["kind"] != "silu":
        return False
    is_same = (x.data, x.ne, x.nb) == (heads.data, heads.ne, heads.nb)
    if not is_same or D.ne != (1, heads.ne[1], 1, 1) or not D.is_contiguous():
        return False
    if z.ne != scan.ne or z.nb[1] != 4 * z.ne[0]:
        return False
    if any(s is not None and overlap(gated, s) for s in (*scan.src, D, z)):
        return False
    _launch(lowering, scan, gated, D, z)
    return True
