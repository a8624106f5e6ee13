"""A decode's graph, ready to run: its schedule, with inputs and results as arrays.

    graph = DecodeGraph(builder, logits, schedule)
    graph.fill(tokens, positions, cells, rows, outputs)
    graph.schedule.run()
    logits, best = graph.results()

One is made for each ``bucket`` of token counts and kept: positions, cells and lengths are inputs.
Inputs are in memory of the host; results may be anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.sched import Schedule
from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..kv.table import Ints

Floats = npt.NDArray[np.float32]


class DecodeGraph:
    """A scheduled graph with its inputs and results as arrays."""

    def __init__(self, builder: GraphBuilder, logits: Tensor, schedule: Schedule) -> None:
        self.builder, self.schedule = builder, schedule
        self.tokens, self.positions, self.out_ids = (
            as_array(t) for t in (builder.tokens, builder.positions, builder.out_ids)
        )
        self.kv_index = [as_array(t) for t in builder.kv_index]
        self.rows = [t.numpy(squeeze=False)[0, 0] for t in builder.rows]  # [T, 4] of each cache
        self._results = logits, builder.best
        self._here: tuple[Floats, memoryview | None] | None = None
        if all(t is None or _on_host(t) for t in self._results):
            best = None if builder.best is None else as_array(builder.best).data
            self._here = logits.numpy(squeeze=False)[0, 0], best
        first = (
            self.tokens, self.positions, self.out_ids, self.kv_index[0], self.rows[0].reshape(-1)
        )  # fmt: skip
        self._first = tuple(a.data for a in first)  # NumPy's items cost more

    def fill(
        self,
        tokens: list[int],
        positions: list[int],
        cells: Sequence[list[int]],
        rows: Sequence[Ints],
        outputs: list[int],
    ) -> None:
        """Write the inputs of a ubatch, ``cells`` and ``rows`` for each cache.

        Padding writes no cell and attends to nothing.
        """
        n, n_outputs = len(tokens), len(outputs)
        self.tokens[:n], self.tokens[n:] = tokens, 0
        self.positions[:n], self.positions[n:] = positions, 0
        self.out_ids[:n_outputs], self.out_ids[n_outputs:] = outputs, 0
        for index, new in zip(self.kv_index, cells, strict=True):
            index[:n], index[n:] = new, -1
        for row, attended in zip(self.rows, rows, strict=True):
            row[:n], row[n:] = attended, 0

    def fill_one(self, token: int, seq: int, placed: tuple[int, int, int]) -> None:
        """The same for one token and one cache without a window (see ``CellLists.append``)."""
        cell, place, position = placed
        tokens, positions, out_ids, index, row = self._first
        tokens[0], positions[0], out_ids[0], index[0] = token, position, 0, cell
        row[0], row[1], row[2], row[3] = seq, 0, place + 1, position

    def results(self) -> tuple[Floats, memoryview | None]:
        """Logits float32[n_outputs, n_vocab] of the last run, and where the largest of each is.

        The next run overwrites both. The second is None for graphs of many outputs.
        """
        if self._here is not None:
            return self._here
        logits, best = self._results
        found = None if best is None else self.schedule.read(best).reshape(-1).data
        return self.schedule.read(logits)[0, 0], found


def as_array(tensor: Tensor) -> npt.NDArray[Any]:
    """A tensor's memory, flat."""
    return tensor.numpy(squeeze=False).reshape(-1)


def _on_host(tensor: Tensor) -> bool:
    return tensor.buffer is not None and tensor.buffer.buft.is_host


def bucket(n: int) -> int:
    """The token count that a program is made for: eight steps from one power of two to the next."""
    if n <= 16:
        return n
    step = 1 << ((n - 1).bit_length() - 4)
    return -(-n // step) * step
