"""Reduction of a sequence to its important tokens, which each head chooses for itself.

    reduction = Reduction(hparams, n_keep=1024, window=64, n_seq_max=1)
    rows = reduction.place_queries([0, 0], [5, 6])  # the graph stores the tokens' queries there
    reduction.note_outputs({0}, cache)              # sequence 0 may have grown beyond the limit
    for seq in reduction.take_due():
        chosen = choose(votes, 1024, 64)            # votes: what the last queries attend to

A head keeps the first tokens of a sequence (attention sinks), the last ones (the window), and
between them those to which the last queries give the largest probabilities. The rest is removed.
Not thread-safe.
Source: Li et al. 2024, "SnapKV" (votes of the last queries, pooled); Xiao et al. 2023, "Efficient
Streaming Language Models with Attention Sinks"; Zhang et al. 2023, "H2O" (a budget for each head).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pyggml.alloc import alloc_ctx_tensors
from pyggml.buffer import HOST
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.tensor import BufferType, Tensor

from ..errors import BatchError
from ..hparams import HParams
from .table import CellTable, Ints, Seqs, seq_tuple

N_SINKS = 4
N_QUERIES = 32  # of the last tokens, whose attention decides
_POOLED = 7  # neighbouring entries: a name or a number is several tokens
_GROWTH = 4  # a sequence is reduced when it has grown by this part of its budget
Floats = npt.NDArray[np.float32]


class Reduction:
    """Which sequences are reduced when, and the queries of their last tokens.

    Args:
        n_keep: entries that a head keeps of a sequence.
        window: of these, the last ones.
        layers: those with keys and values of their own.
        layer_buft: the buffer type of a layer's keys and values.

    Attributes:
        limit: entries of a sequence beyond which it is reduced.
        n_queries: the last tokens of each sequence whose queries are stored.
        queries: by layer F16 [head_dim, n_seq_max * n_queries, n_head], as attention multiplies
            them with cached keys.
    """

    def __init__(
        self,
        hparams: HParams,
        n_keep: int,
        window: int,
        n_seq_max: int,
        layers: Sequence[int],
        layer_buft: Callable[[int], BufferType] = lambda layer: HOST,
    ) -> None:
        self.n_keep, self.window, self.limit = n_keep, window, n_keep + n_keep // _GROWTH
        self.n_queries = min(window, N_QUERIES)
        # of the stored queries
        self._positions = np.full((n_seq_max, self.n_queries), -1, np.int32)
        self._due: set[int] = set()
        contexts = {layer_buft(i): Context(no_alloc=True) for i in layers}
        self.queries: dict[int, Tensor] = {}
        for i in layers:
            ne = hparams.head_dim_arr[i], n_seq_max * self.n_queries, hparams.n_head_arr[i]
            tensor = contexts[layer_buft(i)].new_tensor(GGMLType.F16, ne)
            self.queries[i] = tensor.set_name(f"cache_q_l{i}")
        for buft, ctx in contexts.items():
            alloc_ctx_tensors(ctx, buft)

    def place_queries(self, seqs: Seqs, positions: Sequence[int]) -> list[int]:
        """The row of ``queries`` for each token of a ubatch; -1: none, there are later tokens.

        The query of a token of several sequences is stored for the first one alone.
        """
        rows, n = [-1] * len(seqs), self.n_queries
        last: dict[int, int] = {}
        for i in range(len(seqs) - 1, -1, -1):
            seq, position = seq_tuple(seqs[i])[0], positions[i]
            if last.setdefault(seq, position) - position < n:
                slot = position % n
                rows[i], self._positions[seq, slot] = seq * n + slot, position
        return rows

    def voters(self, seq: int, last: int) -> tuple[Ints, Ints]:
        """Positions and rows of the stored queries of a sequence whose last position is ``last``.

        Those of tokens that were removed since, or computed in another sequence, are missing.
        """
        positions = np.arange(max(0, last + 1 - self.n_queries), last + 1, dtype=np.int32)
        slots = positions % self.n_queries
        stored = self._positions[seq, slots] == positions
        rows: Ints = (seq * self.n_queries + slots).astype(np.int32)
        return positions[stored], rows[stored]

    def note_outputs(self, seqs: Iterable[int], table: CellTable) -> None:
        """Note the sequences with outputs in a batch: those beyond the limit are due.

        A prompt's earlier batches have no outputs: a prompt is read whole before it is reduced. A
        copy of a sequence is not due before it has as many queries of its own as vote.
        """
        for seq in seqs:
            if table.length(seq) > self.limit:
                positions, _ = self.voters(seq, table.seq_pos_max(seq))
                if len(positions) == self.n_queries:
                    self._due.add(seq)

    def take_due(self) -> list[int]:
        """The sequences that must be reduced before the next batch; they are due no longer."""
        due, self._due = sorted(self._due), set()
        return due

    @property
    def any_due(self) -> bool:
        """Whether `take_due` has any."""
        return bool(self._due)

    def forget(self, seq: int, position: int = 0) -> None:
        """Forget the queries of a sequence's removed tokens, from a position on."""
        self._due.discard(seq)
        stored = self._positions[seq]
        stored[stored >= position] = -1


def choose(votes: Floats, n_keep: int, window: int, n_sinks: int = N_SINKS) -> Ints:
    """The entries that each head keeps, ascending: int32[n_head_kv, n_keep].

    Args:
        votes: float32[n_head_kv, n], the sum of the probabilities of each entry.
        window: the last entries, which all heads keep.
        n_sinks: the first entries, which all heads keep.
    """
    n_head, n = votes.shape
    n_chosen = n_keep - window - n_sinks
    ends = np.r_[:n_sinks, n - window : n]
    between = _pooled(votes)[:, n_sinks : n - window]
    by_votes = np.argsort(-between, axis=1, kind="stable")  # neighbours have equal votes
    chosen = by_votes[:, :n_chosen] + n_sinks
    kept = np.concatenate([chosen, np.broadcast_to(ends, (n_head, len(ends)))], axis=1)
    ascending: Ints = np.sort(kept, axis=1).astype(np.int32)
    return ascending


def _pooled(votes: Floats) -> Floats:
    """The largest vote among an entry and its neighbours."""
    half = _POOLED // 2
    padded = np.pad(votes, ((0, 0), (half, half)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, _POOLED, axis=1)
    largest: Floats = windows.max(axis=2)
    return largest


def check_sizes(n_keep: int, window: int) -> None:
    """Raise BatchError unless a sequence can be reduced to this size."""
    least = window + N_SINKS + 1
    if window < 1 or n_keep < least:
        raise BatchError(
            f"kv_keep is {n_keep} and kv_window {window}: want a window of at least 1, and kv_keep "
            f"0 (keep all) or at least kv_window + {N_SINKS + 1} = {least}"
        )


def check_model(hparams: HParams) -> None:
    """Raise BatchError if sequences of a model cannot be reduced."""
    reasons = {
        "attends to later tokens": not hparams.causal or hparams.has_encoder,
        "has layers with recurrent states": any(hparams.states),
        "has sliding windows": any(map(hparams.window, range(hparams.n_layer))),
        "weighs keys by their distance (ALiBi)": hparams.max_alibi_bias > 0,
        "attends to chosen keys only": hparams.n_sparse_keys > 0,
        "is a head that drafts": hparams.n_embd_target > 0,
    }
    for reason, applies in reasons.items():
        if applies:
            raise BatchError(f"kv_keep: this model {reason}, so its cache cannot be reduced; use 0")
