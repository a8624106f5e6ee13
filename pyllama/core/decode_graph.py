"""The graph of one ubatch, scheduled, with its inputs and results as arrays.

    graph = DecodeGraph(builder, logits, schedule)
    graph.run(tokens, positions, placed, outputs).logits[-1].argmax()

A context keeps one for each ``bucket`` of token counts: positions, cells and lengths are inputs.
Inputs are in host memory; results may be in a device's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.rounding import round_up
from pyggml.sched import Schedule
from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..kv.table import Ints

Floats = npt.NDArray[np.float32]


class Outputs:
    """Results of a decode, which the next one may overwrite.

    Args:
        logits: float32[n_outputs, n_vocab].
        argmax: int32[n_outputs], of each row; None if the graph does not compute it.

    Attributes:
        rows: the rows of the logits.
    """

    __slots__ = ("argmax", "logits", "rows")

    def __init__(self, logits: Floats, argmax: memoryview | None = None) -> None:
        self.logits, self.argmax = logits, argmax
        self.rows: list[Floats] = list(logits)

    def first(self, n: int) -> Outputs:
        """The first ``n`` outputs."""
        if n == len(self.rows):
            return self
        return Outputs(self.logits[:n], None if self.argmax is None else self.argmax[:n])


class DecodeGraph:
    """A scheduled graph with its inputs and results as arrays."""

    def __init__(self, builder: GraphBuilder, logits: Tensor, schedule: Schedule) -> None:
        self.builder, self.schedule = builder, schedule
        self.tokens, self.positions, self.out_ids = (
            as_array(t) for t in (builder.tokens, builder.positions, builder.out_ids)
        )
        self.kv_index = [as_array(t) for t in builder.kv_index]
        self.rows = [t.numpy(squeeze=False)[0, 0] for t in builder.rows]  # [T, 6] of each cache
        self._results = logits, builder.argmax
        self._outputs: Outputs | None = None  # in host memory
        if all(t is None or _on_host(t) for t in self._results):
            argmax = None if builder.argmax is None else as_array(builder.argmax).data
            self._outputs = Outputs(logits.numpy(squeeze=False)[0, 0], argmax)
        first = (
            self.tokens, self.positions, self.out_ids, self.kv_index[0], self.rows[0].reshape(-1)
        )  # fmt: skip
        # memoryviews: assigning one item costs less than with NumPy
        self._first = tuple(a.data for a in first)

    def run(
        self,
        tokens: list[int],
        positions: list[int],
        placed: Sequence[tuple[list[int], Ints]],
        outputs: list[int],
    ) -> Outputs:
        """Evaluate a ubatch; the rest up to the graph's size is padding.

        Padding tokens write no cell and attend to nothing.

        Args:
            tokens, positions: of the ubatch.
            placed: cells and rows of each cache, see ``CellLists.place_tree``.
            outputs: indices of the tokens to compute logits for.

        Raises:
            UnsupportedOp, ComputeError, Aborted: as ``Schedule.run``.
        """
        self._write(tokens, positions, placed, outputs)
        return self._evaluate(len(outputs))

    def enqueue(
        self, tokens: list[int], positions: list[int], placed: Sequence[tuple[list[int], Ints]]
    ) -> None:
        """`run` without outputs, which may return before devices have computed the ubatch.

        Raises:
            UnsupportedOp, ComputeError, Aborted: as ``Schedule.run``, also for earlier ubatches.
        """
        self._write(tokens, positions, placed, [])
        self.schedule.enqueue()

    def _write(
        self,
        tokens: list[int],
        positions: list[int],
        placed: Sequence[tuple[list[int], Ints]],
        outputs: list[int],
    ) -> None:
        """Write the inputs of a ubatch, as soon as queued ones are not read any more."""
        self.schedule.wait_inputs()
        n, n_outputs = len(tokens), len(outputs)
        self.tokens[:n], self.tokens[n:] = tokens, 0
        self.positions[:n], self.positions[n:] = positions, 0
        self.out_ids[:n_outputs], self.out_ids[n_outputs:] = outputs, 0
        for index, row, (cells, attended) in zip(self.kv_index, self.rows, placed, strict=True):
            index[:n], index[n:] = cells, -1
            row[:n], row[n:] = attended, 0

    def run_chain(
        self, tokens: Sequence[int], seq: int, placed: tuple[int, int, int], outputs: Sequence[int]
    ) -> Outputs:
        """`run` for consecutive tokens of one sequence, and one cache without a window.

        Args:
            placed: cell, index in the sequence's list and position of the first, from
                ``CellLists.append``.

        Raises:
            UnsupportedOp, ComputeError, Aborted: as ``Schedule.run``.
        """
        n, n_outputs = len(tokens), len(outputs)
        cell, place, position = placed
        cells, rows = self.kv_index[0], self.rows[0]
        if n < len(self.tokens):
            self.tokens[n:], self.positions[n:], cells[n:], rows[n:] = 0, 0, -1, 0
        self.tokens[:n], self.positions[:n] = tokens, range(position, position + n)
        cells[:n] = range(cell, cell + n)
        rows[:n, :2], rows[:n, 2] = (seq, 0), range(place + 1, place + n + 1)
        rows[:n, 3], rows[:n, 5] = self.positions[:n], 0
        self.out_ids[:n_outputs], self.out_ids[n_outputs:] = outputs, 0
        return self._evaluate(n_outputs)

    def run_token(self, token: int, seq: int, placed: tuple[int, int, int]) -> Outputs:
        """`run` for one token and one cache without a window.

        Args:
            placed: cell, index in the sequence's list and position, from ``CellLists.append``.

        Raises:
            UnsupportedOp, ComputeError, Aborted: as ``Schedule.run``.
        """
        cell, place, position = placed
        tokens, positions, out_ids, index, row = self._first
        tokens[0], positions[0], out_ids[0], index[0] = token, position, 0, cell
        row[0], row[1], row[2], row[3], row[5] = seq, 0, place + 1, position, 0
        self.schedule.run()
        return self._read() if self._outputs is None else self._outputs

    def _evaluate(self, n_outputs: int) -> Outputs:
        self.schedule.run()
        made = self._read() if self._outputs is None else self._outputs
        return made.first(n_outputs)

    def _read(self) -> Outputs:
        """The results of the last run, copied from the device."""
        logits, argmax = self._results
        ids = None if argmax is None else self.schedule.read(argmax).reshape(-1).data
        return Outputs(self.schedule.read(logits)[0, 0], ids)


def as_array(tensor: Tensor) -> npt.NDArray[Any]:
    """A tensor's memory as a flat array."""
    return tensor.numpy(squeeze=False).reshape(-1)


def _on_host(tensor: Tensor) -> bool:
    return tensor.buffer is not None and tensor.buffer.buft.is_host


def bucket(n: int) -> int:
    """``n`` rounded up to one of eight sizes between two powers of two, to share graphs."""
    if n <= 16:
        return n
    step = 1 << ((n - 1).bit_length() - 4)
    return round_up(n, step)
