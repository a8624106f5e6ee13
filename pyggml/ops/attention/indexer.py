"""The keys that a token attends to in sparse attention: INDEXER_TOP_K.

    chosen = indexer_top_k(ctx, q, k, weights, cells, rows, 2048)    # I32 [2, 2048, T]
    out = flash_attn_cells(ctx, q2, k2, v2, chosen, chosen_rows, scale)

The score of a key is the sum over the indexer's heads of ``weight * relu(q k)``. A token's keys are
those of ``flash_attn_cells``: entries (cell, position) of lists. Its ``n_keys`` keys with the
highest scores are again such a list, in the order of the entries; all keys where there are no more.
So the result has a list for each token, and attention to it is that of ``flash_attn_cells`` with
rows (t, 0, number of keys, pos). Entries after the last key are 0. Of equal scores the earlier
entry is chosen; NaN counts as larger than inf.

Lists, rows and branches, and what backends check of them: see ``attention``.
Source: DeepSeek-AI 2025, "DeepSeek-V3.2", section 2.1; ggml, ``ggml_lightning_indexer``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...context import Context
from ...dtype import GGMLType
from ...tensor import Tensor
from ..op import (
    F16,
    F32,
    I32,
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

__all__ = ["indexer_top_k"]

_OP = "INDEXER_TOP_K"
_KEY_TYPES = F16, F32, GGMLType.BF16


def _infer(
    q: Tensor, k: Tensor, weights: Tensor, cells: Tensor, rows: Tensor, branches: Tensor | None,
    n_keys: int,
) -> Out:  # fmt: skip
    require_type(_OP, "q", q, (F32,))
    require_type(_OP, "k", k, _KEY_TYPES)
    require_type(_OP, "weights", weights, (F32,))
    for name, x in (("q", q), ("k", k), ("weights", weights)):
        require_rows(_OP, name, x)
    n_head, n_tokens = q.ne[1:3]
    require(
        k.ne[0] == q.ne[0] and k.ne[2:] == (1, 1) and q.ne[3] == 1 and k.ne[1] > 0,
        _OP,
        f"q {q.ne} and k {k.ne} must be [d, n_head, T] and [d, n_cells]",
    )
    require(
        weights.ne == (n_head, n_tokens, 1, 1),
        _OP,
        f"weights {weights.ne} must be [{n_head}, {n_tokens}]: one for each head and token of q",
    )
    check_tables(_OP, n_tokens, cells, rows, branches)
    require(n_keys > 0, _OP, f"n_keys is {n_keys}, want 1 or more")
    return Out(I32, (2, n_keys, n_tokens, 1))


def _indexer_top_k(
    q: Array, k: Array, weights: Array, cells: Array, rows: Array, branches: Array | None,
    n_keys: int,
) -> Array:  # fmt: skip
    q, k = q[0].astype(np.float64), k[0, 0].astype(np.float64)  # [T, n_head, d], [n_cells, d]
    lists = cells[0], None if branches is None else branches[0]
    check_lists(len(k), lists[0], rows[0, 0], lists[1])
    out = np.zeros((1, len(q), n_keys, 2), np.int32)
    for t, row in enumerate(rows[0, 0]):
        entries = entries_of(row, *lists)
        scores = weights[0, 0, t] @ np.maximum(q[t] @ k[entries[:, 0]].T, 0)
        best = np.sort(stable_order(scores, "desc")[:n_keys])
        out[0, t, : len(best)] = entries[best]
    return out


def _cost(node: Tensor) -> Cost:
    q, k, *_ = node.src
    assert q is not None and k is not None
    macs = q.ne[0] * q.ne[1] * q.ne[2] * k.ne[1]  # at most
    return Cost(node.nbytes + q.nbytes + k.nbytes, macs)


def _listed(
    d: int, n_head: int, n_tokens: int, n: tuple[int, int, int], n_keys: int,
    type: Any = F16, perf: bool = False,
) -> Case:  # fmt: skip
    """``n`` = entries of a list, cells of the cache, sequences."""
    n_list, n_cells, n_seq = n
    lists = listed(*n), token_rows(n_tokens, n_list, n_seq)
    sources = arg(d, n_head, n_tokens), arg(d, n_cells, type=type), arg(n_head, n_tokens)
    return case(*sources, *lists, n_keys=n_keys, perf=perf)


def _branched(n_tokens: int, prefix: int, n_cells: int, n_keys: int) -> Case:
    tables = branched_lists(n_tokens, prefix, n_cells)
    sources = arg(64, 8, n_tokens), arg(64, n_cells, type=F16), arg(8, n_tokens)
    return case(*sources, *tables, n_keys=n_keys)


INDEXER_TOP_K = define_op(
    _OP,
    src=("q", "k", "weights", "cells", "rows", "branches?"),
    params={"n_keys": 1},
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
        _listed(128, 64, 1, (8192, 8192, 1), 2048, perf=True),
        _listed(128, 64, 64, (4096, 4096, 1), 2048, perf=True),
    ],
    exact=True,
    cost=_cost,
    doc="The `n_keys` keys of each token with the highest scores, as lists of cells.",
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
) -> Tensor:
    """The keys with the highest scores of an indexer (see the module).

    Shape:
        q F32 [d, n_head, T], k F16, BF16 or F32 [d, n_cells], weights F32 [n_head, T],
        cells I32 [2, n_list, n_seq], rows I32 [4, T], branches I32 [2, n_entries, n_branches]
        (rows then are [6, T]) -> I32 [2, n_keys, T]

    Raises:
        ShapeError, TypeMismatch: sizes do not fit, or another type.
    """
    return INDEXER_TOP_K.build(ctx, q, k, weights, cells, rows, branches, n_keys=n_keys)
