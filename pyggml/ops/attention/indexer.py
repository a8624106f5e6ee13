"""The keys that a token attends to in sparse attention: INDEXER_TOP_K, BLOCK_TOP_K, LIST_ROWS.

    chosen = indexer_top_k(ctx, q, k, weights, cells, rows, 2048)    # I32 [2, 2048, T]
    chosen = block_top_k(ctx, q, k, cells, rows, 16, 128, 1)         # I32 [2, 2048, T, n_head]
    out = flash_attn_cells(ctx, q2, k2, v2, chosen, list_rows(ctx, chosen, rows), scale)

A token's keys are those of ``flash_attn_cells``: entries (cell, position) of lists. What is chosen
of them is again such a list, in the order of the entries, and -1 after the last one. So the result
has a list for each token, and attention to it is that of ``flash_attn_cells`` with the rows of
``list_rows``.

INDEXER_TOP_K chooses the ``n_keys`` keys with the highest scores, or all where there are no more. A
key's score is the sum over the indexer's heads of ``weight * relu(q k)``. With a ``block`` of more
than one position, keys of a block are chosen together by the score of its last one, and up to
``block - 1`` keys after the last whole block in any case, beside ``n_keys``.

BLOCK_TOP_K chooses, for each head, ``n_blocks`` blocks of ``block`` positions by the highest
product ``q k`` of a key in them; the last ``n_local`` blocks up to the token's are chosen in any
case. Where positions repeat, the keys beyond ``n_blocks * block`` are left out.

Positions of a list ascend. Of equal scores the earlier entry or block is chosen; NaN counts as
larger than inf.

Lists, rows and branches, and what backends check of them: see ``attention``.
Source: DeepSeek-AI 2025, "DeepSeek-V3.2", section 2.1; ggml, ``ggml_lightning_indexer``; MiniMax
2026, "MiniMax-M3".
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...dtype import GGMLType
from ...tensor import Tensor
from ..op import (
    F16,
    F32,
    I32,
    Arg,
    Array,
    Case,
    Cost,
    Out,
    arg,
    case,
    define_op,
    require,
    require_rows,
    require_type,
)
from ..rows.sort import stable_order
from .lists import branched_lists, check_lists, check_tables, entries_of, listed, token_rows

__all__ = ["block_top_k", "indexer_top_k", "list_rows"]

_OP, _BLOCK_OP, _ROWS_OP = "INDEXER_TOP_K", "BLOCK_TOP_K", "LIST_ROWS"
_KEY_TYPES = F16, F32, GGMLType.BF16


def _check_keys(op: str, q: Tensor, k: Tensor) -> None:
    require_type(op, "q", q, (F32,))
    require_type(op, "k", k, _KEY_TYPES)
    require_rows(op, "q", q)
    require_rows(op, "k", k)
    require(
        k.ne[0] == q.ne[0] and k.ne[2:] == (1, 1) and q.ne[3] == 1 and k.ne[1] > 0,
        op,
        f"q {q.ne} and k {k.ne} must be [d, n_head, T] and [d, n_cells]",
    )


def _infer(
    q: Tensor, k: Tensor, weights: Tensor, cells: Tensor, rows: Tensor, branches: Tensor | None,
    n_keys: int, block: int,
) -> Out:  # fmt: skip
    _check_keys(_OP, q, k)
    require_type(_OP, "weights", weights, (F32,))
    require_rows(_OP, "weights", weights)
    n_head, n_tokens = q.ne[1:3]
    require(
        weights.ne == (n_head, n_tokens, 1, 1),
        _OP,
        f"weights {weights.ne} must be [{n_head}, {n_tokens}]: one for each head and token of q",
    )
    check_tables(_OP, n_tokens, cells, rows, branches)
    require(
        n_keys > 0 and block > 0 and n_keys % block == 0,
        _OP,
        f"n_keys is {n_keys} in blocks of {block}, want one or more whole blocks",
    )
    return Out(I32, (2, n_keys + block - 1, n_tokens, 1))


def _indexer_top_k(
    q: Array, k: Array, weights: Array, cells: Array, rows: Array, branches: Array | None,
    n_keys: int, block: int,
) -> Array:  # fmt: skip
    q, k = q[0].astype(np.float64), k[0, 0].astype(np.float64)  # [T, n_head, d], [n_cells, d]
    lists = cells[0], None if branches is None else branches[0]
    check_lists(len(k), lists[0], rows[0, 0], lists[1])
    out = np.full((1, len(q), n_keys + block - 1, 2), -1, np.int32)
    for t, row in enumerate(rows[0, 0]):
        entries = entries_of(row, *lists)
        scores = weights[0, 0, t] @ np.maximum(q[t] @ k[entries[:, 0]].T, 0)
        ends = np.flatnonzero(entries[:, 1] % block == block - 1)
        end_of = np.searchsorted(ends, np.arange(len(entries)))  # the entry's block
        after = end_of == len(ends)
        scores = np.where(after, np.inf, scores[np.append(ends, 0)[end_of]])
        n = n_keys + min(after.sum(), block - 1)
        best = np.sort(stable_order(scores, "desc")[:n])
        out[0, t, : len(best)] = entries[best]
    return out


def _infer_block_top_k(
    q: Tensor, k: Tensor, cells: Tensor, rows: Tensor, branches: Tensor | None,
    n_blocks: int, block: int, n_local: int,
) -> Out:  # fmt: skip
    _check_keys(_BLOCK_OP, q, k)
    n_head, n_tokens = q.ne[1:3]
    check_tables(_BLOCK_OP, n_tokens, cells, rows, branches)
    require(
        block > 0 and 0 <= n_local <= n_blocks and n_blocks > 0,
        _BLOCK_OP,
        f"n_blocks {n_blocks} of {block} positions, n_local {n_local}: want 1 or more blocks of 1 "
        "or more, and 0 to n_blocks local ones",
    )
    return Out(I32, (2, n_blocks * block, n_tokens, n_head))


def _block_top_k(
    q: Array, k: Array, cells: Array, rows: Array, branches: Array | None,
    n_blocks: int, block: int, n_local: int,
) -> Array:  # fmt: skip
    q, k = q[0].astype(np.float64), k[0, 0].astype(np.float64)
    lists = cells[0], None if branches is None else branches[0]
    check_lists(len(k), lists[0], rows[0, 0], lists[1])
    out = np.full((q.shape[1], len(q), n_blocks * block, 2), -1, np.int32)
    for t, row in enumerate(rows[0, 0]):
        entries = entries_of(row, *lists)
        blocks, of_entry = np.unique(entries[:, 1] // block, return_inverse=True)
        scores = np.full((q.shape[1], len(blocks)), -np.inf)
        np.maximum.at(scores.T, of_entry, (q[t] @ k[entries[:, 0]].T).T)
        scores[:, blocks > row[3] // block - n_local] = np.inf
        for head, of_head in enumerate(scores):
            kept = stable_order(of_head, "desc")[:n_blocks]
            found = entries[np.isin(of_entry, kept)][: n_blocks * block]
            out[head, t, : len(found)] = found
    return out


def _infer_list_rows(lists: Tensor, rows: Tensor) -> Out:
    for name, x in (("lists", lists), ("rows", rows)):
        require_type(_ROWS_OP, name, x, (I32,))
        require(x.is_contiguous(), _ROWS_OP, f"{name} {x.ne} must have no gaps")
    require(
        lists.ne[0] == 2 and rows.ne[0] >= 4 and rows.ne[1:] == (lists.ne[2], 1, 1),
        _ROWS_OP,
        f"lists {lists.ne} and rows {rows.ne} must be [2, n, T, n_head] and [4 or more, T]",
    )
    return Out(I32, (4, *lists.ne[2:], 1))


def _list_rows(lists: Array, rows: Array) -> Array:
    n_head, n_tokens = lists.shape[:2]
    out = np.zeros((1, n_head, n_tokens, 4), np.int32)
    out[0, :, :, 0] = range(n_tokens)
    out[0, :, :, 2] = (lists[..., 0] >= 0).sum(-1)
    out[0, :, :, 3] = rows[0, 0, :, 3]
    return out


def _cost(node: Tensor) -> Cost:
    q, k, *_ = node.src
    assert q is not None and k is not None
    macs = q.ne[0] * q.ne[1] * q.ne[2] * k.ne[1]  # at most
    return Cost(node.nbytes + q.nbytes + k.nbytes, macs)


def _gaps(n_list: int, n_cells: int, step: float) -> Arg:
    """A list of random cells at positions ``step`` apart: some are missing, or repeat below 1."""

    def values(rng: np.random.Generator) -> Array:
        positions = (np.arange(n_list) * step).astype(int)
        return np.stack([rng.permutation(n_cells)[:n_list], positions], -1)[None]

    return Arg((2, n_list, 1), I32, values=values)


def _listed(
    d: int, n_head: int, n_tokens: int, n: tuple[int, int, int], n_keys: int,
    type: GGMLType = F16, block: int = 1, perf: bool = False,
) -> Case:  # fmt: skip
    """``n`` = entries of a list, cells of the cache, sequences."""
    n_list, n_cells, n_seq = n
    lists = listed(*n), token_rows(n_tokens, n_list, n_seq)
    sources = arg(d, n_head, n_tokens), arg(d, n_cells, type=type), arg(n_head, n_tokens)
    return case(*sources, *lists, n_keys=n_keys, block=block, perf=perf)


def _branched(n_tokens: int, prefix: int, n_cells: int, n_keys: int, block: int = 1) -> Case:
    tables = branched_lists(n_tokens, prefix, n_cells)
    sources = arg(64, 8, n_tokens), arg(64, n_cells, type=F16), arg(8, n_tokens)
    return case(*sources, *tables, n_keys=n_keys, block=block)


INDEXER_TOP_K = define_op(
    _OP,
    src=("q", "k", "weights", "cells", "rows", "branches?"),
    params={"n_keys": 1, "block": 1},
    infer=_infer,
    reference=_indexer_top_k,
    cases=lambda: [
        *(_listed(64, 8, 1, (n, 600, 1), 32, type) for n in (1, 32, 300) for type in _KEY_TYPES),
        _listed(128, 64, 1, (600, 700, 1), 64),
        _listed(20, 3, 5, (70, 130, 3), 16, F32),
        _listed(33, 7, 7, (300, 400, 2), 299),
        _listed(64, 6, 40, (300, 400, 2), 50),
        _listed(64, 1, 3, (300, 400, 1), 250),  # half of the scores are 0
        _branched(9, 260, 900, 100),
        _branched(40, 512, 900, 300),
        *(_listed(64, 8, 1, (n, 600, 1), 32, block=8) for n in (1, 8, 32, 39, 40, 300)),
        _listed(33, 7, 7, (300, 400, 2), 294, F32, block=7),
        _listed(64, 1, 40, (300, 400, 2), 48, block=16),
        _branched(9, 260, 900, 96, block=16),
        *(
            case(
                arg(64, 8, 3),
                arg(64, 400, type=F16),
                arg(8, 3),
                _gaps(300, 400, step),
                token_rows(3, 300, 1),
                n_keys=32,
                block=8,
            )
            for step in (2, 0.4)  # without a whole block, and with repeated positions
        ),
        _listed(128, 64, 1, (8192, 8192, 1), 2048, perf=True),
        _listed(128, 64, 64, (4096, 4096, 1), 2048, perf=True),
    ],
    exact=True,
    cost=_cost,
    doc="The `n_keys` keys of each token with the highest scores, or whole blocks of keys.",
)


def _blocks(
    d: int, n_head: int, n_tokens: int, n: tuple[int, int, int], of: tuple[int, int, int],
    type: GGMLType = F16,
) -> Case:  # fmt: skip
    """``n`` as of ``_listed``; ``of`` = n_blocks, block, n_local."""
    n_blocks, block, n_local = of
    lists = listed(*n), token_rows(n_tokens, n[0], n[2])
    sources = arg(d, n_head, n_tokens), arg(d, n[1], type=type)
    return case(*sources, *lists, n_blocks=n_blocks, block=block, n_local=n_local)


BLOCK_TOP_K = define_op(
    _BLOCK_OP,
    src=("q", "k", "cells", "rows", "branches?"),
    params={"n_blocks": 1, "block": 1, "n_local": 0},
    infer=_infer_block_top_k,
    reference=_block_top_k,
    cases=lambda: [
        *(_blocks(64, 4, 1, (n, 600, 1), (4, 16, 1), t) for n in (1, 64, 300) for t in _KEY_TYPES),
        _blocks(20, 3, 5, (70, 130, 3), (3, 7, 2), F32),
        _blocks(33, 7, 7, (300, 400, 2), (2, 100, 1)),
        _blocks(64, 6, 40, (300, 400, 2), (5, 1, 0)),
        case(
            arg(64, 2, 9), arg(64, 900, type=F16), *branched_lists(9, 260, 900),
            n_blocks=6, block=16, n_local=1,
        ),
        *(
            case(
                arg(64, 2, 3), arg(64, 400, type=F16), _gaps(300, 400, step),
                token_rows(3, 300, 1), n_blocks=4, block=8, n_local=1,
            )
            for step in (2, 0.4)
        ),
    ],
    exact=True,
    cost=_cost,
    doc="The `n_blocks` blocks of keys of each token and head with the highest score of a key.",
)  # fmt: skip


def _lists_of(n: int, n_tokens: int, n_head: int) -> Arg:
    def values(rng: np.random.Generator) -> Array:
        lists = rng.integers(0, 99, (n_head, n_tokens, n, 2))
        lists[np.arange(n) >= rng.integers(0, n + 1, (n_head, n_tokens, 1))] = -1
        return lists

    return Arg((2, n, n_tokens, n_head), I32, values=values)


LIST_ROWS = define_op(
    _ROWS_OP,
    src=("lists", "rows"),
    infer=_infer_list_rows,
    reference=_list_rows,
    cases=lambda: [
        case(_lists_of(n, T, n_head), token_rows(T, 20, 1))
        for n, T, n_head in ((1, 1, 1), (17, 5, 1), (100, 40, 3))
    ],
    exact=True,
    doc="The rows of attention to a list of cells for each token: (t, 0, its length, pos).",
)


def indexer_top_k(
    ctx: Context,
    q: Tensor,
    k: Tensor,
    weights: Tensor,
    cells: Tensor,
    rows: Tensor,
    n_keys: int,
    *,
    branches: Tensor | None = None,
    block: int = 1,
) -> Tensor:
    """The keys with the highest scores of an indexer (see the module).

    Args:
        block: positions of keys that are chosen together; the first ones begin at position 0.

    Shape:
        q F32 [d, n_head, T], k F16, BF16 or F32 [d, n_cells], weights F32 [n_head, T],
        cells I32 [2, n_list, n_seq], rows I32 [4, T], branches I32 [2, n_entries, n_branches]
        (rows then are [6, T]) -> I32 [2, n_keys + block - 1, T]

    Raises:
        ShapeError, TypeMismatch: sizes do not fit, or another type.
    """
    sources = q, k, weights, cells, rows, branches
    return INDEXER_TOP_K.build(ctx, *sources, n_keys=n_keys, block=block)


def block_top_k(
    ctx: Context,
    q: Tensor,
    k: Tensor,
    cells: Tensor,
    rows: Tensor,
    n_blocks: int,
    block: int,
    n_local: int,
    *,
    branches: Tensor | None = None,
) -> Tensor:
    """The keys in the blocks with the highest scores (see the module).

    Args:
        block: positions of a block; the first one begins at position 0.
        n_local: how many of the last blocks are chosen in any case.

    Shape:
        q F32 [d, n_head, T], k F16, BF16 or F32 [d, n_cells], tables as of ``indexer_top_k``
        -> I32 [2, n_blocks * block, T, n_head]

    Raises:
        ShapeError, TypeMismatch: sizes do not fit, or another type.
    """
    params = {"n_blocks": n_blocks, "block": block, "n_local": n_local}
    return BLOCK_TOP_K.build(ctx, q, k, cells, rows, branches, **params)


def list_rows(ctx: Context, lists: Tensor, rows: Tensor) -> Tensor:
    """The rows of ``flash_attn_cells`` for lists that end with -1 (see the module).

    Shape:
        lists I32 [2, n, T, n_head], rows I32 [4 or 6, T] -> I32 [4, T, n_head]

    Raises:
        ShapeError, TypeMismatch: sizes do not fit, or another type.
    """
    return LIST_ROWS.build(ctx, lists, rows)
