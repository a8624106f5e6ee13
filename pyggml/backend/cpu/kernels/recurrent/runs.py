"""Carry a block of states through the tokens of all runs, in both forms of a recurrent op.

    _carry = carries(_step)                        # _step: an inline function for one token

    states = states_of(node, SRC0, ...)            # in a kernel
    _carry(node, states, StateBlock(...), scratch)

A block is a part of a state that stays in L1 over all tokens of a run: rows ``begin`` to ``end``,
or columns of a head. ``ops.recurrent.runs`` has the two forms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .....compiler.jit import inline
from .....rounding import ceil_div
from .....tensor import Tensor
from ...abi import DST, data, f32_ptr, i32_ptr, nb, ne
from ...compile.lowering import GRAIN, CpuLowering
from ...tuning import tuning
from ..span import BLOCK, columns

BLOCK_BYTES = 16384  # of a state: half of a small L1
_FEW_TOKENS = 16  # up to which states are prefetched: those of more stay in L1


class States(NamedTuple):
    """The runs of a node and the places of their states."""

    runs: int  # address, 0 in ggml's form
    slots: int  # address, 0 in ggml's form
    ids: int  # of ggml's form, address of the state of each sequence; 0: in order
    n_runs: int
    n_t: int  # of ggml's form, tokens of a sequence
    start: int  # address of the states before
    kept: int  # of ggml's form, address of the states after
    size: int  # bytes of a state
    K: int  # of ggml's form, states kept of a sequence


class StateBlock(NamedTuple):
    """A part of each state: ``n_rows`` rows of ``n_bytes``, ``stride`` bytes apart."""

    begin: int
    end: int
    offset: int  # bytes from the beginning of the state
    n_rows: int
    stride: int
    n_bytes: int


@inline
def states_of(node, states, ids, slots, tokens, n_seqs, size, kept, K):
    """The States of a node.

    Args:
        states, ids, slots: the sources (SRC0, ...); ``ids`` is ``runs`` if there are slots.
        tokens: of all sequences.
        kept: of ggml's form, address of the states after.
    """
    with_slots = data(node, slots) != 0
    return States(
        data(node, ids) if with_slots else 0,
        data(node, slots),
        0 if with_slots else data(node, ids),
        ne(node, ids, 1) if with_slots else n_seqs,
        tokens // n_seqs,
        data(node, states),
        kept,
        size,
        K,
    )


@inline
def run_of(runs, r, n_t, ids):
    """(first token, number of tokens, slot of the state before them) of run ``r``.

    Args:
        runs: address of the runs; 0 in ggml's form.
        n_t: of ggml's form, tokens of a sequence.
        ids: of ggml's form, address of the state of each sequence; 0: in order.
    """
    if runs != 0:
        entry = i32_ptr(runs + 12 * r)
        return entry[0] + 0, entry[1] + 0, entry[2] + 0
    slot = i32_ptr(ids + 4 * r)[0] + 0 if ids != 0 else r
    return r * n_t, n_t, slot


@inline
def slot_after(slots, t):
    """The slot of the state after a token, -1 for none."""
    return i32_ptr(slots + 4 * t)[0] + 0


@inline
def n_used(runs, n_runs):
    """Tokens of all runs."""
    end = 0
    for r in range(n_runs):
        entry = i32_ptr(runs + 12 * r)
        if entry[1] > 0:
            end = entry[0] + entry[1]
    return end + 0


@inline
def clear(address, n_bytes):
    """Write zeros to float32."""
    x = f32_ptr(address)
    for i in range(n_bytes // 4):
        x[i] = 0


@inline
def copy(source, target, n_bytes):
    """Copy float32."""
    x, y = f32_ptr(source), f32_ptr(target)
    for i in range(n_bytes // 4):
        y[i] = x[i]


@inline
def head_row(node, tensor, h, t):
    """The address of a head's row of a token, in a source [S, H, T]."""
    return data(node, tensor) + h * nb(node, tensor, 1) + t * nb(node, tensor, 2)


@inline
def rows_block(begin, end, row_bytes):
    """Rows ``begin`` to ``end`` of a state."""
    return StateBlock(begin, end, row_bytes * begin, 1, 0, row_bytes * (end - begin))


@inline
def columns_block(S, u, parts):
    """Columns of one head; ``begin`` and ``end`` count the columns of all heads."""
    head = u // parts
    begin, end = columns(S, u - head * parts, parts)
    offset = 4 * (S * S * head + begin)
    return StateBlock(S * head + begin, S * head + end, offset, S, 4 * S, 4 * (end - begin))


@inline
def clear_padding(node, states, n_tokens, offset, n_bytes):
    """Write zeros to a part of the results of the tokens after the last run."""
    if states.runs != 0:
        row_bytes = 4 * ne(node, DST, 0) * ne(node, DST, 1)
        for t in range(n_used(states.runs, states.n_runs), n_tokens):
            clear(data(node, DST) + row_bytes * t + offset, n_bytes)


@inline
def _kept_at(states, r, t, last):
    """Where the state after a token is kept besides; 0: nowhere."""
    if t == last:
        return 0
    if states.runs == 0:
        back = last - t
        return states.kept + states.size * (back * states.n_runs + r) if back < states.K else 0
    slot = slot_after(states.slots, t)
    return states.start + states.size * slot if slot >= 0 else 0


def carries(step: Any) -> Any:
    """The inline function that updates a block of the states by all tokens.

    It calls ``step(node, t, before, after, block, scratch)`` with the addresses of a block before
    and after token t, which are the same from a run's second token on.
    """

    @inline
    def carry(node, states, block, scratch):
        for r in range(states.n_runs):
            first, n, slot = run_of(states.runs, r, states.n_t, states.ids)
            if n <= 0:
                continue
            last = first + n - 1
            before = states.start + states.size * slot + block.offset
            if states.runs != 0:
                after = states.start + states.size * slot_after(states.slots, last) + block.offset
            else:
                after = states.kept + states.size * r + block.offset
            if slot < 0:
                for i in range(block.n_rows):
                    clear(after + block.stride * i, block.n_bytes)
                before = after
            for t in range(first, last + 1):
                step(node, t, before, after, block, scratch)
                before = after
                kept = _kept_at(states, r, t, last)
                if kept != 0:
                    for i in range(block.n_rows):
                        at = block.stride * i
                        copy(after + at, kept + block.offset + at, block.n_bytes)

    return carry


def row_blocks(lowering: CpuLowering, rows: int, n: int, tokens: int) -> tuple[int, int]:
    """(chunks of rows of ``n`` float32, rows of a block that stays in L1)."""
    chunks = min(rows, n * rows * tokens // GRAIN, 8 * lowering.n_threads)
    return max(1, chunks), max(1, BLOCK_BYTES // (4 * n))


def state_ahead(tokens: int) -> int:
    """How many bytes ahead of a row of a state a kernel prefetches."""
    return tuning().one_bytes if tokens <= _FEW_TOKENS else 0


def column_parts(lowering: CpuLowering, S: int, H: int, tokens: int) -> tuple[int, int]:
    """(parts of each head's S columns, chunks), so that a part stays in L1."""
    chunks = max(1, min(S * S * H * tokens // GRAIN, 8 * lowering.n_threads))
    parts = max(ceil_div(4 * S * S, BLOCK_BYTES), ceil_div(chunks, H))
    parts = max(1, min(parts, S // BLOCK))
    return parts, min(chunks, H * parts)


def gap_free_rows(node: Tensor) -> bool:
    """Whether the rows of all sources have no gaps."""
    return all(t is None or t.is_contiguous_rows() for t in node.src)
