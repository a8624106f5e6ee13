"""RWKV_WKV6, by columns of heads, and RWKV_WKV7, by rows.

Both are independent of each other within a head, so a chunk takes some of them through all tokens
of a run; a block of them stays in L1 meanwhile. The bits of a token depend on its run alone.
Access: a token reads and writes each row of the block, front to back; version 7 reads it twice.
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
    SRC7,
    SRC8,
    data,
    f32_ptr,
    first_row,
    nb,
    ne,
    params_of,
)
from ...compile.lowering import CpuLowering, lowers
from ...simd.recurrent.recurrence import (
    AHEAD,
    corrected_rows_2,
    decayed_columns_bonus,
    dot_f32,
    prefetch_ahead,
)
from ..span import Parts
from .runs import (
    carries,
    clear_padding,
    column_parts,
    columns_block,
    gap_free_rows,
    head_row,
    row_blocks,
    rows_block,
    state_ahead,
    states_of,
)


@inline
def _step_6(node, t, before, after, block, scratch):
    S, H = ne(node, SRC0, 0), ne(node, SRC0, 1)
    h, n = block.begin // S, block.end - block.begin
    k, r, decay = (
        head_row(node, SRC0, h, t),
        head_row(node, SRC2, h, t),
        head_row(node, SRC4, h, t),
    )
    v = head_row(node, SRC1, h, t) + 4 * (block.begin - S * h)
    y = data(node, DST) + 4 * (S * H * t + block.begin)
    if t + AHEAD < ne(node, SRC0, 2):
        prefetch_ahead(k, S, nb(node, SRC0, 2))
        prefetch_ahead(v, n, nb(node, SRC1, 2))
        prefetch_ahead(r, S, nb(node, SRC2, 2))
        prefetch_ahead(decay, S, nb(node, SRC4, 2))
        prefetch_ahead(y, n, 4 * S * H)
    weights, keys = f32_ptr(data(node, SRC3) + 4 * S * h), f32_ptr(k)
    weighted = f32_ptr(scratch)
    for i in range(S):
        weighted[i] = weights[i] * keys[i]
    bonus = dot_f32(scratch, r, S)
    decayed_columns_bonus(before, after, S, 4 * S, n, decay, k, r, v, y, bonus)


_carry_6 = carries(_step_6)


@kernel
def rwkv_wkv6_f32(node, chunk, n_chunks, scratch):
    """A result's 32 columns stay in registers over all keys."""
    S, H, T = ne(node, SRC0, 0), ne(node, SRC0, 1), ne(node, SRC0, 2)
    parts, n_seqs = params_of(node, Parts).parts, ne(node, SRC5, 1)
    kept = data(node, DST) + 4 * S * H * T
    states = states_of(node, SRC5, SRC6, SRC7, T, n_seqs, 4 * S * S * H, kept, 1)
    for u in range(
        first_row(H * parts, chunk, n_chunks), first_row(H * parts, chunk + 1, n_chunks)
    ):
        block = columns_block(S, u, parts)
        _carry_6(node, states, block, scratch)
        clear_padding(node, states, T, 4 * block.begin, block.n_bytes)


@lowers("RWKV_WKV6", gap_free_rows)
def _lower_wkv6(lowering: CpuLowering, node: Tensor) -> None:
    S, H, T = node.src[0].ne[:3]
    parts, chunks = column_parts(lowering, S, H, T)
    lowering.launch(rwkv_wkv6_f32, node, Parts(parts), chunks, scratch=4 * S)


class Wkv7(NamedTuple):
    """The values of RWKV_WKV7."""

    block: int  # rows that stay in L1
    ahead: int  # bytes from a row of a state to what is prefetched


@inline
def _step_7(node, t, before, after, block, scratch):
    S, H, T = ne(node, SRC0, 0), ne(node, SRC0, 1), ne(node, SRC0, 2)
    row = block.begin
    while row < block.end:
        h = row // S
        end = min(block.end, S * (h + 1))
        r, w, k = head_row(node, SRC0, h, t), head_row(node, SRC1, h, t), head_row(node, SRC2, h, t)
        a, b = head_row(node, SRC4, h, t), head_row(node, SRC5, h, t)
        v = head_row(node, SRC3, h, t) + 4 * (row - S * h)
        y = data(node, DST) + 4 * (S * H * t + row)
        if t + AHEAD < T:
            prefetch_ahead(r, S, nb(node, SRC0, 2))
            prefetch_ahead(w, S, nb(node, SRC1, 2))
            prefetch_ahead(k, S, nb(node, SRC2, 2))
            prefetch_ahead(v, end - row, nb(node, SRC3, 2))
            prefetch_ahead(a, S, nb(node, SRC4, 2))
            prefetch_ahead(b, S, nb(node, SRC5, 2))
            prefetch_ahead(y, end - row, 4 * S * H)
        at = 4 * S * (row - block.begin)
        corrected_rows_2(
            before + at, after + at, end - row, S, w, a, v, k, b, r, y, params_of(node, Wkv7).ahead
        )
        row = end


_carry_7 = carries(_step_7)


@kernel
def rwkv_wkv7_f32(node, chunk, n_chunks, scratch):
    """Wkv7 of a head share the loads of r, w, k, a and b."""
    S, H, T = ne(node, SRC0, 0), ne(node, SRC0, 1), ne(node, SRC0, 2)
    n_seqs, kept = ne(node, SRC6, 1), data(node, DST) + 4 * S * H * T
    states = states_of(node, SRC6, SRC7, SRC8, T, n_seqs, 4 * S * S * H, kept, 1)
    begin, end = first_row(S * H, chunk, n_chunks), first_row(S * H, chunk + 1, n_chunks)
    n_rows = params_of(node, Wkv7).block
    for top in range(begin, end, n_rows):
        _carry_7(node, states, rows_block(top, min(end, top + n_rows), 4 * S), scratch)
    clear_padding(node, states, T, 4 * begin, 4 * (end - begin))


@lowers("RWKV_WKV7", gap_free_rows)
def _lower_wkv7(lowering: CpuLowering, node: Tensor) -> None:
    S, H, T = node.src[0].ne[:3]
    chunks, block = row_blocks(lowering, S * H, S, T)
    lowering.launch(rwkv_wkv7_f32, node, Wkv7(block, state_ahead(T)), chunks)
