"""GATED_DELTA_NET, row by row of the states.

As in ``scan``: chunks are ranges of rows, and a block of rows stays in L1 over all tokens of a run.
With ``p = -exp(g) k`` and ``u = beta k``, a row of the state needs two passes only:

    S' = exp(g) S + (v[i] + S . p) u        y[i] = S' . q / sqrt(S_v)

Access: a token reads each row of the state twice, the second time from L1, and writes it once.
"""

from __future__ import annotations

import math
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
from ...simd.math import exp_f32
from ...simd.recurrent.recurrence import AHEAD, corrected_rows, prefetch_ahead
from .runs import (
    carries,
    clear_padding,
    gap_free_rows,
    row_blocks,
    rows_block,
    state_ahead,
    states_of,
)


class DeltaNet(NamedTuple):
    """The values of GATED_DELTA_NET."""

    K: int  # of ggml's form, states kept of a sequence
    block: int  # rows that stay in L1
    scale: float  # of the results
    ahead: int  # bytes from a row of a state to what is prefetched


@inline
def _row(node, tensor, h, i2, i3):
    """The address of a head's row of token ``i2`` of sequence ``i3``."""
    return (
        data(node, tensor)
        + h * nb(node, tensor, 1)
        + i2 * nb(node, tensor, 2)
        + i3 * nb(node, tensor, 3)
    )


@inline
def _repeated_row(node, tensor, h, i2, i3):
    """``_row`` of q or k, whose heads and sequences repeat over those of v."""
    if i3 > 0:
        i3 //= ne(node, SRC2, 3) // ne(node, tensor, 3)
    return _row(node, tensor, h % ne(node, tensor, 1), i2, i3)


@inline
def _update(node, t, before, after, block, scratch, gates_keys):
    S, H, T = ne(node, SRC2, 0), ne(node, SRC2, 1), ne(node, SRC2, 2) * ne(node, SRC2, 3)
    scale, ahead = params_of(node, DeltaNet).scale, params_of(node, DeltaNet).ahead
    i3 = t // ne(node, SRC2, 2)
    i2 = t - i3 * ne(node, SRC2, 2)
    p, u, q = f32_ptr(scratch), f32_ptr(scratch + 4 * S), f32_ptr(scratch + 8 * S)
    decays = f32_ptr(scratch + 12 * S)
    row = block.begin
    while row < block.end:
        h = row // S
        end = min(block.end, S * (h + 1))
        query = _repeated_row(node, SRC0, h, i2, i3)
        key = _repeated_row(node, SRC1, h, i2, i3)
        gate = _row(node, SRC3, h, i2, i3)
        queries, keys, gates = f32_ptr(query), f32_ptr(key), f32_ptr(gate)
        beta = f32_ptr(_row(node, SRC4, h, i2, i3))[0]
        v = _row(node, SRC2, h, i2, i3) + 4 * (row - S * h)
        y = data(node, DST) + 4 * (S * H * t + row)
        if t + AHEAD < T:
            prefetch_ahead(query, S, nb(node, SRC0, 2))
            prefetch_ahead(key, S, nb(node, SRC1, 2))
            prefetch_ahead(gate, ne(node, SRC3, 0), nb(node, SRC3, 2))
            prefetch_ahead(v, end - row, nb(node, SRC2, 2))
            prefetch_ahead(y, end - row, 4 * S * H)
        at = 4 * S * (row - block.begin)
        for i in range(S):
            q[i] = queries[i] * scale
        for i in range(S):
            u[i] = keys[i] * beta
        if gates_keys:
            for i in range(S):
                decays[i] = exp_f32(gates[i])
            for i in range(S):
                p[i] = -decays[i] * keys[i]
            corrected_rows(
                before + at, after + at, end - row, S, scratch + 12 * S,
                scratch, v, scratch + 4 * S, scratch + 8 * S, y, ahead,
            )  # fmt: skip
        else:
            decay = exp_f32(gates[0])
            for i in range(S):
                p[i] = -decay * keys[i]
            corrected_rows(
                before + at, after + at, end - row, S, decay,
                scratch, v, scratch + 4 * S, scratch + 8 * S, y, ahead,
            )  # fmt: skip
        row = end


@inline
def _by_head(node, t, before, after, block, scratch):
    _update(node, t, before, after, block, scratch, False)


@inline
def _by_key(node, t, before, after, block, scratch):
    _update(node, t, before, after, block, scratch, True)


_carry_by_head, _carry_by_key = carries(_by_head), carries(_by_key)


@cache
def gated_delta_net_kernel(gates_keys: bool) -> CpuKernel:
    """The kernel with a gate for each head or, of KDA, for each key."""

    def gated_delta_net(node, chunk, n_chunks, scratch):
        S, H, n_seqs = ne(node, SRC2, 0), ne(node, SRC2, 1), ne(node, SRC2, 3)
        n_tokens = ne(node, SRC2, 2) * n_seqs
        kept, K = data(node, DST) + 4 * S * H * n_tokens, params_of(node, DeltaNet).K
        states = states_of(node, SRC5, SRC6, SRC7, n_tokens, n_seqs, 4 * S * S * H, kept, K)
        begin, end = first_row(S * H, chunk, n_chunks), first_row(S * H, chunk + 1, n_chunks)
        n_rows = params_of(node, DeltaNet).block
        for top in range(begin, end, n_rows):
            block = rows_block(top, min(end, top + n_rows), 4 * S)
            if gates_keys:
                _carry_by_key(node, states, block, scratch)
            else:
                _carry_by_head(node, states, block, scratch)
        clear_padding(node, states, n_tokens, 4 * begin, 4 * (end - begin))

    return kernel(
        gated_delta_net, "gated_delta_net_keys_f32" if gates_keys else "gated_delta_net_f32"
    )


@lowers("GATED_DELTA_NET", gap_free_rows)
def _lower_gated_delta_net(lowering: CpuLowering, node: Tensor) -> None:
    _, _, v, g = node.src[:4]
    S, H = v.ne[:2]
    chunks, block = row_blocks(lowering, S * H, S, v.ne[2] * v.ne[3])
    ahead = state_ahead(v.ne[2] * v.ne[3])
    params = DeltaNet(node.op_params["K"], block, 1 / math.sqrt(S), ahead)
    lowering.launch(gated_delta_net_kernel(g.ne[0] != 1), node, params, chunks, scratch=16 * S)
