"""The memory of a context: one KV cache for each attention window of the model, and its states.

    memory = Memory(hparams, n_ctx=4096, n_seq_max=4, n_ubatch=512)
    memory.seq_cp(0, 1)                            # sequence 1 continues from sequence 0
    memory.of_layer(3).k[3]

Most models have one cache. Sliding-window layers have a second one, little larger than the window
(with ``swa_full``: as large as the first). Recurrent layers have states, of which a sequence keeps
its newest and a few older ones: it can only go back to these. A model without keys and values has a
cache too, of positions alone. Without causality nothing is kept, and there is no cache. Operations
on sequences are those of ``KVCache``, on all caches and the states or on none.
Source: llama.cpp, ``llama_memory``, ``llama_kv_cache_iswa`` and ``llama_memory_hybrid``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyggml.buffer import HOST
from pyggml.dtype import GGMLType
from pyggml.gguf.mapped import Mapped
from pyggml.rounding import ceil_div, round_up
from pyggml.tensor import BufferType, Tensor

from ..errors import BatchError, ContextFull, PyllamaError
from ..hparams import HParams
from .cache import KVCache, cached_layers
from .compressed import CompressedRows
from .reduction import Reduction
from .states import ON_HOST, StateCache, StatePlaces
from .table import CHUNK, Ints, Seqs, seq_tuple

Floats = npt.NDArray[np.float32]


class Placed(NamedTuple):
    """The places of a ubatch's tokens.

    Attributes:
        caches: for each cache the cells and rows of the tokens, see ``CellLists.place_tree``.
        states: runs and slots, see ``StateCache.place``; None without recurrent layers.
        ranges: for each window the rows of the tokens, see ``text_rows``; empty with caches.
        types: of the tokens, see ``text_segments``; empty where all are 0.
        queries: rows for the tokens' queries, see ``Reduction``; empty without it.
        lists: of each cache of compressed rows, see ``CompressedRows.lists``.
    """

    caches: list[tuple[list[int], Ints]]
    states: tuple[Ints, Ints] | None = None
    ranges: Sequence[Ints] = ()
    types: Ints | tuple[()] = ()
    queries: Sequence[int] = ()
    lists: Sequence[tuple[Ints, Ints]] = ()


class HiddenReads(NamedTuple):
    """The hidden states of the target's tokens that are the input of a head that drafts.

    Attributes:
        nodes: names of nodes of the target's graph, whose columns are concatenated.
        fc: a matrix of the head that projects the concatenated columns, [n_columns, n]; None: no
            projection.
        norm: weight of an RMS norm before ``fc``, [n_columns]; None: no norm.
        norm_eps: epsilon of this norm.
        files: mapped files with these weights.
    """

    nodes: tuple[str, ...]
    fc: Tensor | None = None
    norm: Tensor | None = None
    norm_eps: float = 0.0
    files: tuple[Mapped, ...] = ()


class Memory:
    """The caches of a context.

    Args:
        n_ctx: cells of the cache of full attention.
        n_ubatch: maximum tokens placed at once.
        swa_full: give caches of sliding windows ``n_ctx`` cells too.
        unified: whether sequences share the cells; otherwise each has an equal part.
        n_checkpoints: the most positions of a sequence to which it can go back although a window
            has evicted entries, or a state cannot forget tokens.
        checkpoint_every: number of tokens between the checkpoints that are made without a batch
            asking for them; 0: none.
        layer_buft: see ``KVCache``.
        states: see ``StateCache``.
        kv_keep, kv_window: of a ``Reduction``; 0: there is none.

    Attributes:
        states: of recurrent layers; None if the model has none.
        reduction: of sequences to their important tokens; None if they keep all.
        types: of keys and values, such as ``F16/F16``; also says which hidden states are kept, and
            whether keys of an indexer are.
        reads: the hidden states that are kept for a head; None: none are.
        caches: by ascending window, then those of compressed rows; the first one decides whether
            the context is full. None without causality.
        compressed: the caches of compressed rows, by the number of tokens of a row.
        can_shift: whether positions can change. Learned positions are part of keys and values,
            chunks of attention are by position, so evicted cells may be in them again, a state
            cannot forget a token, the tokens of an encoded text depend on each other, and a
            reduced sequence has no positions.
        has_checkpoints: whether a sequence can only go back to checkpoints, at least after a while.

    Raises:
        AllocError: the caches do not fit into this machine's memory.
    """

    def __init__(
        self,
        hparams: HParams,
        n_ctx: int,
        n_seq_max: int = 1,
        type_k: GGMLType = GGMLType.F16,
        type_v: GGMLType = GGMLType.F16,
        *,
        n_ubatch: int = 512,
        swa_full: bool = False,
        unified: bool = True,
        n_checkpoints: int = 0,
        checkpoint_every: int = 0,
        layer_buft: Callable[[int], BufferType] = lambda layer: HOST,
        states: StatePlaces = ON_HOST,
        kv_keep: int = 0,
        kv_window: int = 0,
    ) -> None:
        self.n_cells, self.n_seq_max, self.unified = n_ctx, n_seq_max, unified
        self._n_ubatch = n_ubatch
        self.states: StateCache | None = None
        if any(hparams.states):
            self.states = StateCache(
                hparams, n_seq_max, n_checkpoints * n_seq_max, checkpoint_every, states
            )
        by_order = hparams.learned_positions or hparams.swa_chunked
        self.can_shift = not (by_order or hparams.has_encoder or self.states is not None or kv_keep)
        self.types = f"{type_k.name}/{type_v.name}"
        self.reads: HiddenReads | None = None
        by_window: dict[int, list[int]] = {}
        for i in cached_layers(hparams):
            by_window.setdefault(hparams.window(i), []).append(i)
        by_window = by_window or {0: []} if hparams.causal else {}
        self.caches: list[KVCache] = []
        ratios = {i: hparams.compress_ratio(i) for i in cached_layers(hparams)}
        n_rows = {
            ratio: n_seq_max * ceil_div(n_ctx // n_seq_max, ratio)
            for ratio in ratios.values() if ratio and hparams.causal
        }  # fmt: skip
        for window in sorted(by_window):
            n_cells = n_ctx
            if window and not swa_full:
                n_cells = min(n_ctx, window_cells(window, n_seq_max, n_ubatch, unified))
            self.caches.append(
                KVCache(
                    hparams, n_cells, n_seq_max, type_k, type_v,
                    layers=by_window[window], window=window, unified=unified, n_ubatch=n_ubatch,
                    n_checkpoints=n_checkpoints, layer_buft=layer_buft,
                    n_before={i: n_rows[ratio] for i, ratio in ratios.items() if ratio},
                )
            )  # fmt: skip
        self.compressed = {
            ratio: CompressedRows(
                hparams, self.caches[0], ratio, n, n_seq_max, type_k, type_v,
                layers=[i for i in ratios if ratios[i] == ratio], unified=unified,
                layer_buft=layer_buft,
            )
            for ratio, n in sorted(n_rows.items())
        }  # fmt: skip
        self._of_tokens = tuple(self.caches)
        self.caches += self.compressed.values()
        self.reduction: Reduction | None = None
        if kv_keep:
            layers = self.caches[0].layers
            self.reduction = Reduction(hparams, kv_keep, kv_window, n_seq_max, layers, layer_buft)
        if any(cache.indexer_keys for cache in self.caches):
            self.types += " with keys of an indexer"
        self._windows = [cache for cache in self.caches if cache.window and cache.n_cells < n_ctx]
        self._every = checkpoint_every
        self.has_checkpoints = bool(self.states or self._windows)
        by_layer = {i: cache for cache in self._of_tokens for i in cache.layers}
        self._owners = {i: hparams.cache_layer(i) for i in range(hparams.n_layer)}
        owners = self._owners.items()
        self._of_layer = {i: by_layer[owner] for i, owner in owners if owner in by_layer}

    @property
    def size_bytes(self) -> int:
        """Bytes of keys and values, and of one state for each sequence."""
        n_bytes = sum(cache.size_bytes for cache in self.caches)
        return n_bytes + (0 if self.states is None else self.states.size_bytes)

    def keep_hidden(self, reads: HiddenReads, n_columns: int) -> None:
        """Allocate a row of ``n_columns`` float32 numbers for each cell; graphs then write it.

        Copies of sequences, saved states and kept prefixes have these rows too.

        Args:
            reads: which hidden states.
            n_columns: their columns, after the projection.
        """
        self.caches[0].keep_hidden(n_columns)
        self.reads = reads
        self.types += f" with hidden states ({n_columns} of {', '.join(reads.nodes)})"

    def hidden(self, seq: int, start: int = 0) -> Floats:
        """Hidden states of a sequence's tokens from index ``start`` on: float32[n, n_columns].

        A cache with a window has cells of the last tokens only, which are counted from 0.
        """
        cache = self.caches[0]
        assert cache.hidden is not None
        rows: Floats = cache.hidden.numpy(squeeze=False)[0, 0]
        return rows[cache.entries(seq)[start:, 0]]

    @property
    def n_used(self) -> int:
        """Cells that belong to a sequence."""
        n_used = self.caches[0].n_used if self.caches else 0  # a window may have evicted others
        return max([n_used, *(cache.n_used * cache.ratio for cache in self.compressed.values())])

    def of_layer(self, layer: int) -> KVCache:
        """The cache that a layer attends to."""
        return self._of_layer[layer]

    def owner(self, layer: int) -> int:
        """The layer whose keys and values in `of_layer` a layer attends to."""
        return self._owners[layer]

    def lists(self, placed: Sequence[tuple[list[int], Ints]]) -> list[tuple[Ints, Ints]]:
        """The lists of tokens just placed in all caches, see ``CompressedRows.lists``."""
        n, rows = len(self._of_tokens), [of_cache for _, of_cache in placed]
        return [
            cache.lists(rows[0], of_rows)
            for cache, of_rows in zip(self.compressed.values(), rows[n:], strict=True)
        ]

    def length(self, seq: int) -> int:
        """Tokens of a sequence."""
        return self.caches[0].length(seq) if self.caches else 0

    def seq_pos_max(self, seq: int) -> int:
        """The last position of a sequence, -1 where it is empty."""
        return self.caches[0].seq_pos_max(seq) if self.caches else -1

    def seq_pos_min(self, seq: int) -> int:
        """The first position that all layers still have, -1 where the sequence is empty."""
        return max((cache.seq_pos_min(seq) for cache in self._of_tokens), default=-1)

    def encoded(self, seq: int) -> int:
        """Number of tokens of the encoded text with which a sequence begins; 0 without one."""
        return self.caches[0].encoded.get(seq, 0) if self.caches else 0

    def reduced(self, seq: int) -> int:
        """The position that came next when a sequence was reduced; 0 if it was not."""
        return self.caches[0].reduced.get(seq, 0) if self.caches else 0

    def n_recomputed(self, seq: int) -> int:
        """How many of a prompt's last tokens a sequence evaluates itself, though others have them.

        Of a sequence that will be reduced the queries of these vote.
        """
        return 1 if self.reduction is None or self.reduced(seq) else self.reduction.n_queries

    def check_room(self, seqs: Seqs, positions: Sequence[int]) -> None:
        """Whether all these tokens can be placed, ``n_ubatch`` at a time.

        Raises:
            ContextFull, BatchError: see ``KVCache.check_room``.
        """
        for cache in self.caches:
            enough = window_cells(cache.window, self.n_seq_max, self._n_ubatch, self.unified)
            if cache.window and cache.n_cells >= enough:
                cache.check_window(seqs, positions)
            else:
                cache.check_room(seqs, positions)

    def mark(self, seqs: Seqs, positions: Sequence[int], kept: Collection[int]) -> None:
        """Let sequences go back to the positions after some tokens that are going to be placed.

        Args:
            kept: indices of the tokens.
        """
        if not self._windows:
            return
        for i, (group, position) in enumerate(zip(seqs, positions, strict=True)):
            if i in kept or (self._every and (position + 1) % self._every == 0):
                for seq in seq_tuple(group):
                    for cache in self._windows:
                        cache.kept.mark(seq, position + 1)

    def place_tree(
        self, seqs: Sequence[int], positions: Sequence[int], parents: Sequence[int]
    ) -> list[tuple[list[int], Ints]]:
        """Assign cells to the nodes of trees: for each cache, see ``CellLists.place_tree``."""
        try:
            return [cache.place_tree(seqs, positions, parents) for cache in self.caches]
        except PyllamaError:
            for seq in set(seqs):
                self.drop_tree(seq)
            raise

    def commit_tree(self, seq: int, path: Sequence[int]) -> None:
        """Continue a sequence by a path of the tree that was decoded last; frees the other nodes.

        Keys and values stay where they are.

        Args:
            path: indices of nodes, see ``CellLists.commit_tree``.

        Raises:
            BatchError: the sequence has no tree, or these nodes are no path; nothing has changed.
        """
        for cache in self.caches:
            cache.commit_tree(seq, path)

    def drop_tree(self, seq: int) -> None:
        """Free the nodes of a sequence's tree, if it has one."""
        for cache in self.caches:
            cache.drop_tree(seq)

    def resume(self, seq: int, position: int) -> int:
        """The largest position up to ``position`` at which a sequence can continue.

        If entries in the window of a token there were evicted, the newest checkpoint; of models
        with recurrent layers, the newest position that has a state. Within an encoded text, and
        before the end that a sequence had when it was reduced, it is 0.
        """
        while True:
            found = position if position >= max(self.encoded(seq), self.reduced(seq)) else 0
            if self.states is not None:
                found = self.states.resume(seq, found)
            for cache in self.caches:
                if not cache.sees(seq, found):
                    found = cache.kept.newest(seq, found, cache.evicted(seq))
            if found == position:
                return found
            position = found

    def rewind(self, seq: int, position: int) -> int:
        """Remove a sequence from `resume` of a position on, to continue it there; returns that."""
        position = self.resume(seq, position)
        blind = [cache for cache in self.caches if position and not cache.sees(seq, position)]
        try:
            for cache in blind:
                cache.go_back(seq, position)
        except ContextFull:
            position = 0
        self.seq_rm(seq, position)
        return position

    def forget(self, seq: int, position: int) -> None:
        """Remove the tokens of a decode that failed, and those before them without a state."""
        if self.states is not None:
            self.states.lose(seq, position)
            position = min(position, self.states.position(seq))
        self._forget_queries(seq, position)
        for cache in self.caches:
            cache.kept.truncate(seq, position)
            cache.seq_rm(seq, position)

    def clear(self) -> None:
        """Remove everything."""
        self._forget_queries(-1)
        for cache in self.caches:
            cache.clear()
            for seq in range(self.n_seq_max):
                cache.kept.truncate(seq, 0)
        if self.states is not None:
            self.states.clear()

    def seq_rm(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        """Remove positions [p0, p1) (p1 -1: to the end) of a sequence (-1: of all).

        Raises:
            BatchError: a recurrent state, or a reduced sequence, cannot forget these tokens alone;
                see `rewind`.
        """
        for s in range(self.n_seq_max) if seq < 0 else (seq,):
            self._check_reduced(s, p0, p1, "removed")
        if self.states is not None:
            for s in range(self.n_seq_max) if seq < 0 else (seq,):
                self._check_removal(s, p0, p1)
            for s in range(self.n_seq_max) if seq < 0 else (seq,):
                self.states.truncate(s, p0 if p0 > self.seq_pos_min(s) else 0)
        self._forget_queries(seq, p0)
        for cache in self.caches:
            for s in range(self.n_seq_max) if seq < 0 else (seq,):
                cache.kept.truncate(s, p0 if p1 < 0 or p1 > cache.seq_pos_max(s) else 0)
            cache.seq_rm(seq, p0, p1)

    def _check_removal(self, seq: int, p0: int, p1: int) -> None:
        assert self.states is not None
        first, end = self.seq_pos_min(seq), self.seq_pos_max(seq) + 1
        if p0 >= end or not end or 0 <= p1 <= first:
            return
        if 0 <= p1 < end:
            raise BatchError(
                f"sequence {seq} has positions {first} to {end - 1}: a recurrent state cannot "
                f"forget {p0} to {p1 - 1} alone; remove all from {p0} on"
            )
        if p0 > first and self.states.resume(seq, p0) != p0:
            raise BatchError(
                f"sequence {seq} cannot go back to position {p0}: its newest recurrent state up "
                f"to there is of position {self.states.resume(seq, p0)}; use rewind()"
            )

    def _check_reduced(self, seq: int, p0: int, p1: int, what: str) -> None:
        """Raise BatchError if [p0, p1) has only some of the positions before the reduction."""
        end = self.reduced(seq)
        if 0 < p0 < end or p0 <= 0 < p1 < end:
            raise BatchError(
                f"sequence {seq} was reduced at position {end} (kv_keep): tokens before it cannot "
                f"be {what} alone; clear the sequence, or use rewind()"
            )

    def _forget_queries(self, seq: int, position: int = 0) -> None:
        if self.reduction is not None:
            for s in range(self.n_seq_max) if seq < 0 else (seq,):
                self.reduction.forget(s, max(position, 0))

    def drop_last(self, seq: int, n: int) -> None:
        """Remove a few of the last tokens of a sequence, see ``CellLists.drop_last``."""
        if self.states is not None or self.reduction is not None:
            return self.seq_rm(seq, self.seq_pos_max(seq) + 1 - n)
        for cache in self.caches:
            cache.drop_last(seq, n)

    def seq_cp(self, source: int, target: int, p0: int = 0, p1: int = -1) -> None:
        """Add positions of one sequence to another.

        Raises:
            BatchError: see ``KVCache.seq_cp``; of models with recurrent layers, there is no state
                at ``p1``, or the copy does not begin with the sequence; it has a part of a reduced
                sequence.
        """
        self.drop_tree(target)
        if source != target:
            self._check_reduced(source, p0, p1, "copied")
            self._forget_queries(target)
        end = self.seq_pos_max(source) + 1
        if self.states is not None and source != target:
            end = end if p1 < 0 else min(p1, end)
            at = self.states.resume(source, end)
            if p0 > max(self.seq_pos_min(source), 0) or at != end:
                raise BatchError(
                    f"positions {p0} to {end - 1} of sequence {source} cannot be copied: its "
                    f"newest recurrent state up to there is of position {at}"
                )
            self.seq_rm(target)
        self._on_all(lambda cache: cache.seq_cp(source, target, p0, p1))
        if source != target:
            for cache in self._windows:
                cache.kept.copy(source, target, end if p1 < 0 else min(p1, end))
        if self.states is not None and source != target:
            self.states.copy(source, target, end)

    def seq_keep(self, seq: int) -> None:
        """Remove every other sequence."""
        for other in range(self.n_seq_max):
            if other != seq:
                self._forget_queries(other)
        for cache in self.caches:
            cache.seq_keep(seq)
        if self.states is not None:
            for other in range(self.n_seq_max):
                if other != seq:
                    self.states.truncate(other, 0)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Add ``delta`` to positions; those below 0 are removed.

        Raises:
            BatchError: see ``KVCache.seq_add``, ``check_shift``.
        """
        self.check_shift()
        self.drop_tree(seq)
        for cache in self._windows:
            cache.kept.truncate(seq, 0)
        self._on_all(lambda cache: cache.seq_add(seq, p0, p1, delta))

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Divide positions by ``d``. Raises: see ``seq_add``."""
        self.check_shift()
        self.drop_tree(seq)
        for cache in self._windows:
            cache.kept.truncate(seq, 0)
        self._on_all(lambda cache: cache.seq_div(seq, p0, p1, d))

    def check_shift(self) -> None:
        """Raise BatchError unless ``can_shift``."""
        if not self.can_shift:
            raise BatchError(
                "this model has learned positions, chunked attention, recurrent layers or an "
                "encoder, or `kv_keep` is set, so positions cannot change and there is no context "
                "shift; use `n_keep=None`"
            )

    def _on_all(self, operation: Callable[[KVCache], None]) -> None:
        """Apply an operation to all caches; if one fails, undo it on the others."""
        before = [cache.snapshot() for cache in self.caches[:-1]]
        for i, cache in enumerate(self.caches):
            try:
                operation(cache)
            except PyllamaError:
                for done, state in zip(self.caches[:i], before, strict=False):
                    done.restore(state)
                raise


class TargetCells(NamedTuple):
    """The memory of a target, as graphs of a head without keys and values read it.

    Attributes:
        target: has the caches.
        layers: of the target, whose keys and values each layer of the head attends to.
    """

    target: Memory
    layers: tuple[int, ...]
    states: None = None
    reduction: None = None
    reads: None = None
    compressed: Mapping[int, CompressedRows] = MappingProxyType({})  # a target has none

    @property
    def caches(self) -> list[KVCache]:
        """The target's caches."""
        return self.target.caches

    @property
    def n_seq_max(self) -> int:
        """The number of the target's sequences."""
        return self.target.n_seq_max

    def of_layer(self, layer: int) -> KVCache:
        """The cache that a layer of the head attends to."""
        return self.target.of_layer(self.layers[layer])

    def owner(self, layer: int) -> int:
        """The target's layer whose keys and values a layer attends to."""
        return self.target.owner(self.layers[layer])

    def place(self, seqs: Sequence[int]) -> tuple[Placed, list[int]]:
        """Cells for tokens after all tokens of a sequence (-1: none); they get no cell themselves.

        Returns:
            The cells to which they attend, and their position: the first that is free.
        """
        ends = [self.target.seq_pos_max(seq) + 1 if seq >= 0 else 0 for seq in seqs]
        placed = []
        for cache in self.caches:
            lasts = [cache.length(seq) - 1 if seq >= 0 else -1 for seq in seqs]
            rows = cache.rows([max(seq, 0) for seq in seqs], ends, lasts)
            placed.append(([-1] * len(seqs), rows))
        return Placed(placed), ends


def window_cells(window: int, n_seq_max: int, n_ubatch: int, unified: bool) -> int:
    """Cells that always suffice for a window; entries are evicted in whole chunks."""
    one = window + CHUNK
    cells = n_seq_max * one + n_ubatch if unified else n_seq_max * (one + n_ubatch)
    return round_up(cells, CHUNK)
