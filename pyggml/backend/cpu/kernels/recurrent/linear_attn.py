"""GATED_LINEAR_ATTN, by columns of heads: as RWKV_WKV6.

Access: a token reads and writes each row of a block of columns once.
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
    first_row,
    nb,
    ne,
    params_of,
)
from ...compile.lowering import CpuLowering, lowers
from ...simd.recurrent.recurrence import AHEAD, decayed_columns, prefetch_ahead
from .runs import (
    carries,
    clear_padding,
    column_parts,
    columns_block,
    gap_free_rows,
    head_row,
    states_of,
)


class LinearAttn(NamedTuple):
    """The values of GATED_LINEAR_ATTN."""

    parts: int  # of the columns of each head
    scale: float


@inline
def _step(node, t, before, after, block, scratch):
    S, H = ne(node, SRC0, 0), ne(node, SRC0, 1)
    h, n = block.begin // S, block.end - block.begin
    k, q, g = head_row(node, SRC0, h, t), head_row(node, SRC2, h, t), head_row(node, SRC3, h, t)
    v = head_row(node, SRC1, h, t) + 4 * (block.begin - S * h)
    y = data(node, DST) + 4 * (S * H * t + block.begin)
    if t + AHEAD < ne(node, SRC0, 2):
        prefetch_ahead(k, S, nb(node, SRC0, 2))
        prefetch_ahead(v, n, nb(node, SRC1, 2))
        prefetch_ahead(q, S, nb(node, SRC2, 2))
        prefetch_ahead(g, S, nb(node, SRC3, 2))
        prefetch_ahead(y, n, 4 * S * H)
    scale = params_of(node, LinearAttn).scale
    decayed_columns(before, after, S, 4 * S, n, g, k, q, v, y, scale)


_carry = carries(_step)


@kernel
def gated_linear_attn_f32(node, chunk, n_chunks, scratch):
    """A result's 32 columns stay in registers over all keys."""
    S, H, T = ne(node, SRC0, 0), ne(node, SRC0, 1), ne(node, SRC0, 2)
    parts, n_seqs = params_of(node, LinearAttn).parts, ne(node, SRC4, 1)
    kept = data(node, DST) + 4 * S * H * T
    states = states_of(node, SRC4, SRC5, SRC6, T, n_seqs, 4 * S * S * H, kept, 1)
    for u in range(
        first_row(H * parts, chunk, n_chunks), first_row(H * parts, chunk + 1, n_chunks)
    ):
        block = columns_block(S, u, parts)
        _carry(node, states, block, scratch)
        clear_padding(node, states, T, 4 * block.begin, block.n_bytes)


@lowers("GATED_LINEAR_ATTN", gap_free_rows)
def _lower_gated_linear_attn(lowering: CpuLowering, node: Tensor) -> None:
    S, H, T = node.src[0].ne[:3]
    parts, chunks = column_parts(lowering, S, H, T)
    params = LinearAttn(parts, node.op_params["scale"])
    lowering.launch(gated_linear_attn_f32, node, params, chunks)
