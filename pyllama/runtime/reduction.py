"""Reduces a sequence of the KV cache to the tokens that its last queries attend to.

    targets = cache.cells_to_keep(0, n_keep)
    reduce_sequence(builder, sched, 0, targets, n_threads=2)

One graph computes what the stored queries attend to, for all layers. Then each head's rows of keys
and values are copied, byte by byte, to the cells of the shortened list. Keys have their rotation
already, and attention needs no positions, so only the order of a list must stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import pyggml as ops
from pyggml.dtype import GGMLType

from ..kv.reduction import choose
from ..kv.table import Ints

if TYPE_CHECKING:
    from pyggml.sched import Sched
    from pyggml.tensor import Tensor

    from ..graph.builder import GraphBuilder
    from ..kv.reduction import Floats


class VoteGraph:
    """The graph of the sums of probabilities with which queries attend to the entries of a list.

    Args:
        b: whose graph gets the nodes.
        n: entries of the list.
        n_queries: stored queries that attend to them.
    """

    def __init__(self, b: GraphBuilder, n: int, n_queries: int) -> None:
        reduction, (cache,) = b.kv.reduction, b.kv.caches
        assert reduction is not None
        self.graph, self._n = b.graph, n
        self._n_head_kv = {layer: k.ne[2] for layer, k in cache.k.items()}
        n_head_kv, n_head = max(b.hparams.n_head_kv_arr), max(b.hparams.n_head_arr)
        self._cells, self._rows, self._mask = (
            b.ctx.new_tensor_2d(type, *ne).set_name(name).set_input()
            for name, type, ne in (
                ("vote_cells", GGMLType.I32, (n, n_head_kv)),
                ("vote_rows", GGMLType.I32, (n_queries, n_head)),
                ("vote_mask", GGMLType.F32, (n, n_queries)),
            )
        )
        self._votes: dict[int, Tensor] = {}
        for layer, q in reduction.queries.items():
            cells, rows = (
                ops.view_2d(b.ctx, of_all, of_all.ne[0], n_heads, of_all.nb[1])
                for of_all, n_heads in ((self._cells, cache.k[layer].ne[2]), (self._rows, q.ne[2]))
            )
            self._votes[layer] = b.votes(layer, cells, rows, self._mask)

    def run(
        self, sched: Sched, cells: Ints, rows: Ints, ends: Ints, n_threads: int
    ) -> dict[int, Floats]:
        """The sums by layer, float32[n_head_kv, n].

        Args:
            cells: of the entries, int32[n].
            rows: of the queries, int32[n_queries].
            ends: of each query the number of leading entries that it attends to.
        """
        schedule = sched.compile(self.graph, n_threads=n_threads, interruptible=False)
        self._cells.numpy(squeeze=False)[0, 0] = cells
        self._rows.numpy(squeeze=False)[0, 0] = rows
        hidden = np.arange(self._n) >= ends[:, None]
        self._mask.numpy(squeeze=False)[0, 0] = np.where(hidden, np.float32(-np.inf), 0)
        schedule.run()
        votes: dict[int, Floats] = {}
        for layer, result in self._votes.items():
            of_heads = schedule.read(result).reshape(self._n_head_kv[layer], -1, self._n)
            votes[layer] = of_heads.sum(axis=1)
        return votes


def reduce_sequence(b: GraphBuilder, sched: Sched, seq: int, targets: Ints, n_threads: int) -> None:
    """Keep the important tokens of a sequence for each head, and free the other cells.

    Args:
        targets: the cells to keep, from ``CellLists.cells_to_keep``.
    """
    reduction, (cache,) = b.kv.reduction, b.kv.caches
    assert reduction is not None
    cells, in_list = cache.entries(seq).T.copy()
    positions, rows = reduction.voters(seq, cache.seq_pos_max(seq))
    ends = np.searchsorted(in_list, positions, side="right").astype(np.int32)
    votes = VoteGraph(b, len(cells), len(rows)).run(sched, cells, rows, ends, n_threads)
    cache.reduce(seq, targets, reduction.window)
    for layer, of_heads in votes.items():
        sources = cells[choose(of_heads, len(targets), reduction.window)]
        for tensor in (cache.k[layer], cache.v[layer]):
            if tensor.view_src is None:  # values may be columns of the keys
                cache.move_heads(tensor, sources, targets)
