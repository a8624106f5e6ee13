"""The graph of one ubatch, scheduled, with its inputs and results as arrays.

    graph = DecodeGraph(builder, schedule)
    graph.run(tokens, positions, placed, outputs).logits[-1].argmax()

A context keeps one for each ``bucket`` of token counts: positions, cells and lengths are inputs.
Inputs are in host memory; results may be in a device's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyggml.rounding import round_up
from pyggml.sched import Schedule
from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..hparams import HParams
from ..kv.distances import relative_buckets
from ..kv.memory import Placed
from ..kv.ranges import Ids
from ..kv.table import Ints

Floats = npt.NDArray[np.float32]


class GraphSize(NamedTuple):
    """Numbers of tokens, and of those with logits and with embeddings; whether any has adapters.

    ``encodes``: whether it is the encoder's graph of a model with encoder and decoder.
    """

    n_tokens: int
    n_outputs: int
    n_embeddings: int = 0
    adapted: bool = False
    encodes: bool = False


class Outputs:
    """Results of a decode, which the next one may overwrite.

    Args:
        logits: float32[n_outputs, n_vocab].
        argmax: int32[n_outputs], of each row; None if the graph does not compute it.
        embeddings: float32[n_embeddings, n_embedding]; None if the graph has none.
        scores: float32[n_embeddings, n_cls_out], of the classification head; None if there is none.
        hidden: float32[n_outputs, n_embd], of a head that drafts; None in other models.

    Attributes:
        rows: the rows of the logits.
    """

    __slots__ = ("argmax", "embeddings", "hidden", "logits", "rows", "scores")

    def __init__(
        self,
        logits: Floats,
        argmax: memoryview | None = None,
        embeddings: Floats | None = None,
        scores: Floats | None = None,
        hidden: Floats | None = None,
    ) -> None:
        self.logits, self.argmax, self.embeddings, self.scores = logits, argmax, embeddings, scores
        self.hidden = hidden
        self.rows: list[Floats] = list(logits)

    def copy(self) -> Outputs:
        """A copy that the next decode does not overwrite, without the argmax."""
        embeddings, scores, hidden = (
            None if x is None else x.copy() for x in (self.embeddings, self.scores, self.hidden)
        )
        return Outputs(self.logits.copy(), None, embeddings, scores, hidden)

    @staticmethod
    def concatenated(parts: Sequence[Outputs]) -> Outputs:
        """The outputs of several ubatches in order, without the argmax."""
        logits = np.concatenate([part.logits for part in parts])
        embeddings = [part.embeddings for part in parts if part.embeddings is not None]
        scores = [part.scores for part in parts if part.scores is not None]
        hidden = [part.hidden for part in parts if part.hidden is not None]
        return Outputs(
            logits, None,
            np.concatenate(embeddings) if embeddings else None,
            np.concatenate(scores) if scores else None,
            np.concatenate(hidden) if hidden else None,
        )  # fmt: skip


class DecodeGraph:
    """A scheduled graph with its inputs and results as arrays."""

    def __init__(self, builder: GraphBuilder, schedule: Schedule) -> None:
        self.builder, self.schedule = builder, schedule
        self.tokens, self.positions, self.out_ids = (
            as_array(t) for t in (builder.tokens, builder.positions, builder.out_ids)
        )
        self.kv_index = [as_array(t) for t in builder.kv_index]
        self.rows = [t.numpy(squeeze=False)[0, 0] for t in builder.rows]  # [T, 6] of each cache
        self._lists = [
            (lists.numpy(squeeze=False)[0], rows.numpy(squeeze=False)[0, 0])
            for lists, rows in builder.lists.values()
        ]  # [T, n, 2] and [T, 4] of each cache of compressed rows
        ranges = builder.ranges.values()
        self._types = None if builder.token_types is None else as_array(builder.token_types)
        self._buckets: tuple[Ints, Ints] | None = None  # of distances: the input, and its values
        if builder.buckets is not None:
            hp = builder.hparams
            values = relative_buckets(hp.own["n_rel_buckets"], builder.causal)
            self._buckets = as_array(builder.buckets), values
        self.ranges = [t.numpy(squeeze=False)[0, 0] for t in ranges]  # [T, 4] of each window
        self._cross: Ints | None = None  # [T, 6]
        if builder.cross_rows is not None:
            self._cross = builder.cross_rows.numpy(squeeze=False)[0, 0]
        self._states: tuple[Ints, Ints] | None = None  # runs [n, 3] and slots [T]
        if builder.runs is not None and builder.slots is not None:
            self._states = builder.runs.numpy(squeeze=False)[0, 0], as_array(builder.slots)
        self._queries = None if builder.query_rows is None else as_array(builder.query_rows)
        self._scales = None  # [T, n_adapters]
        if builder.adapter_scales is not None:
            self._scales = builder.adapter_scales.numpy(squeeze=False)[0, 0]
        self.target_hidden: Floats | None = None  # [T, n]
        if builder.target_hidden is not None:
            self.target_hidden = builder.target_hidden.numpy(squeeze=False)[0, 0]
        self._no_logits = np.empty((0, builder.hparams.n_vocab), np.float32)
        self._outputs: Outputs | None = None  # in host memory
        results = (
            builder.logits, builder.argmax, builder.embeddings, builder.scores, builder.hidden
        )  # fmt: skip
        if all(t is None or _on_host(t) for t in results):
            self._outputs = self._results(lambda t: t.numpy(squeeze=False)[0, 0])
        first = (
            self.tokens, self.positions, self.out_ids, *self.kv_index[:1],
            *(rows.reshape(-1) for rows in self.rows[:1]),
        )  # fmt: skip
        # memoryviews: assigning one item costs less than with NumPy
        self._first = tuple(a.data for a in first)

    def run(
        self,
        tokens: Sequence[int] | Ids,
        positions: Sequence[int] | Ids,
        placed: Placed,
        outputs: Sequence[int] | Ids,
        embedded: Sequence[int] | Ids = (),
        scales: Floats | None = None,
        hidden: Floats | None = None,
    ) -> Outputs:
        """Evaluate a ubatch; the rest up to the graph's size is padding.

        Padding tokens write no cell and attend to nothing.

        Args:
            tokens, positions: of the ubatch.
            placed: places of the tokens.
            outputs: indices of the tokens to compute logits for.
            embedded: indices of the tokens to compute embeddings for.
            scales: factors of the adapters, a row for each token; of a graph with adapters only.
            hidden: of a head that drafts, see ``Batch``.

        Raises:
            UnsupportedOp, ComputeError, Aborted: as ``Schedule.run``.
        """
        self._write(tokens, positions, placed, outputs, embedded, scales)
        if self.target_hidden is not None:
            self.target_hidden[: len(tokens)] = 0 if hidden is None else hidden
        return self._evaluate(len(outputs), len(embedded))

    def enqueue(
        self, tokens: Sequence[int], positions: Sequence[int], placed: Placed,
        scales: Floats | None = None,
    ) -> None:  # fmt: skip
        """`run` without outputs, which may return before devices have computed the ubatch.

        Raises:
            UnsupportedOp, ComputeError, Aborted: as ``Schedule.run``, also for earlier ubatches.
        """
        self._write(tokens, positions, placed, [], (), scales)
        self.schedule.enqueue()

    def _write(
        self,
        tokens: Sequence[int] | Ids,
        positions: Sequence[int] | Ids,
        placed: Placed,
        outputs: Sequence[int] | Ids,
        embedded: Sequence[int] | Ids = (),
        scales: Floats | None = None,
    ) -> None:
        """Write the inputs of a ubatch, as soon as queued ones are not read any more."""
        self.schedule.wait_inputs()
        n, n_outputs, first = len(tokens), len(outputs), self.builder.n_outputs
        self.tokens[:n], self.tokens[n:] = tokens, 0
        self.positions[:n], self.positions[n:] = positions, 0
        self.out_ids[:n_outputs], self.out_ids[n_outputs:] = outputs, 0
        self.out_ids[first : first + len(embedded)] = embedded
        for index, row, (cells, attended) in zip(
            self.kv_index, self.rows, placed.caches, strict=True
        ):
            index[:n], index[n:] = cells, -1
            row[:n], row[n:] = attended, 0
        for (lists, rows), (listed, attended) in zip(self._lists, placed.lists, strict=True):
            lists[:n, : listed.shape[1]] = listed
            rows[:n], rows[n:] = attended, 0
        if self._cross is not None:  # the entries before those of self-attention
            self._cross[:] = 0
            self._cross[:, [0, 2, 3]] = self.rows[0][:, [0, 1, 3]]
        for whole, part in zip(self.ranges, placed.ranges, strict=True):
            whole[:n], whole[n:] = part, 0
        if self._types is not None:
            self._types[:n], self._types[n:] = placed.types, 0
        if self._buckets is not None:
            self._buckets[0][:] = self._buckets[1]
        if self._states is not None and placed.states is not None:
            for whole, part in zip(self._states, placed.states, strict=True):
                whole[: len(part)], whole[len(part) :] = part, (0 if whole.ndim > 1 else -1)
        if self._queries is not None:
            self._queries[:n], self._queries[n:] = placed.queries, -1
        if self._scales is not None:
            self._scales[:n], self._scales[n:] = 0 if scales is None else scales, 0

    def run_token(
        self, token: int, seq: int, placed: tuple[int, int, int],
        state: tuple[int, int] | None = None, scales: Floats | None = None, query_row: int = -1,
    ) -> Outputs:  # fmt: skip
        """`run` for one token and one cache without a window.

        Args:
            placed: cell, index in the sequence's list and position, from ``CellLists.append``.
            state: slots before and after the token, from ``StateCache.append``.
            scales: factors of the adapters.
            query_row: row of the token's query, from ``Reduction.place_queries``.

        Raises:
            UnsupportedOp, ComputeError, Aborted: as ``Schedule.run``.
        """
        cell, place, position = placed
        tokens, positions, out_ids, index, row = self._first
        tokens[0], positions[0], out_ids[0], index[0] = token, position, 0, cell
        row[0], row[1], row[2], row[3], row[5] = seq, 0, place + 1, position, 0
        if state is not None and self._states is not None:
            runs, slots = self._states
            runs[0], slots[0] = (0, 1, state[0]), state[1]
        if self._queries is not None:
            self._queries[0] = query_row
        if self._scales is not None and scales is not None:
            self._scales[0] = scales
        self.schedule.run()
        return self._read() if self._outputs is None else self._outputs

    def _evaluate(self, n_outputs: int, n_embeddings: int = 0) -> Outputs:
        self.schedule.run()
        made = self._read() if self._outputs is None else self._outputs
        if n_outputs == len(made.rows) and not n_embeddings:
            return made
        rows = slice(self.builder.n_outputs, self.builder.n_outputs + n_embeddings)
        return Outputs(
            made.logits[:n_outputs],
            None if made.argmax is None else made.argmax[:n_outputs],
            None if made.embeddings is None else made.embeddings[rows],
            None if made.scores is None else made.scores[rows],
            None if made.hidden is None else made.hidden[:n_outputs],
        )

    def _read(self) -> Outputs:
        """The results of the last run, copied from the device."""
        return self._results(lambda tensor: self.schedule.read(tensor)[0, 0])

    def _results(self, rows: Callable[[Tensor], Any]) -> Outputs:
        """The results; ``rows`` returns a matrix of the graph as an array."""
        b = self.builder
        logits, argmax, embeddings, scores, hidden = (
            None if tensor is None else rows(tensor)
            for tensor in (b.logits, b.argmax, b.embeddings, b.scores, b.hidden)
        )
        return Outputs(
            self._no_logits if logits is None else logits,
            None if argmax is None else argmax.reshape(-1).data,
            embeddings,
            scores,
            hidden,
        )


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


def largest_graphs(hparams: HParams, n_ubatch: int) -> list[GraphSize]:
    """The sizes of graphs that a context reserves memory for.

    A context whose tokens attend to later ones computes embeddings, of large ubatches.
    """
    n = bucket(n_ubatch)
    if not hparams.causal:
        return [GraphSize(n, int(not hparams.encoder), n)]
    sizes = [GraphSize(n, n)]
    if hparams.block_size:
        sizes.append(GraphSize(n, 0))
    if hparams.has_encoder:
        sizes.append(GraphSize(n, 0, n, encodes=True))
    return sizes
