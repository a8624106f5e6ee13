"""The table of a KV cache: the list of (cell, position) of each sequence, and the free cells.

    table = CellTable(lists, branches)              # int32[n_seq, n_cells, 2], int32[64, n, 2]
    table.entries(0), table.seq_pos_max(0), table.n_used
    cells, lists = table.export_lists([0, 1])                   # for a saved state

`CellLists` adds the operations on sequences. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BatchError, ContextFull

MAX_POSITION = (1 << 31) - 1
CHUNK = 256  # entries that attention reduces at once; lists are cut at multiples of it only
Ints = npt.NDArray[np.int32]
MAX_BRANCHES = 64  # of the trees of a batch, besides the longest path of each tree
_ARRAYS = ("_lists", "_n_refs")
_VALUES = ("_lengths", "_trees", "_evicted", "encoded", "reduced", "_n_used", "_next", "pending")
Seqs = Sequence[int | tuple[int, ...]]  # of each token: its sequence, or several


@dataclass
class Pending:
    """Changes of keys and values to be applied before the next decode.

    Attributes:
        shift: positions by which to rotate the keys of each cell, after the copies.
        copies: source and target cells, to be copied in this order.
        any: whether there may be pending changes.
    """

    shift: Ints
    copies: list[tuple[Ints, Ints]] = field(default_factory=list)
    any: bool = False

    def clear(self) -> None:
        """Drop all pending changes."""
        if self.any:
            self.copies = []
            self.shift[:] = 0
            self.any = False


@dataclass(slots=True)
class DraftTree:
    """Tokens in cells that follow a sequence but are not in its list yet.

    Attributes:
        parents: of each node, the index of the node that it follows; -1: the end of the list.
        cells: of each node.
        depth: nodes of the longest path, which is written after the end of the list.
    """

    parents: list[int]
    cells: list[int]
    depth: int


class CellTable:
    """The lists of all sequences, and the reference counts of all cells.

    Args:
        table: int32[n_seq_max, n_cells, 2], storage of the lists.
        branches: int32[MAX_BRANCHES, n, 2], storage of the other paths of trees, each from the last
            multiple of ``CHUNK`` entries before the tree.
        window: positions that a token attends to, its own included; 0 for all before it.
        chunked: whether the window is the part since the last multiple of ``window``.
        unified: whether sequences share the cells; otherwise each has an equal part.
        mirrored: whether to record changed entries, for ``changed_entries``.

    Attributes:
        mirrored: whether devices have copies of the lists.
        pending: see ``Pending``.
        encoded: by sequence, the number of leading entries that belong to an encoded text. The
            decoder's tokens attend to these by cross-attention, to later ones by self-attention.
        reduced: by sequence, the position that came next when it was reduced last. Before it,
            heads have kept other tokens in one entry, and nothing can be removed alone.
    """

    def __init__(
        self,
        table: Ints,
        branches: Ints,
        *,
        window: int = 0,
        chunked: bool = False,
        unified: bool = True,
        mirrored: bool = False,
    ) -> None:
        self.n_seq_max, self.n_cells = int(table.shape[0]), int(table.shape[1])
        self.window, self.unified = window, unified or self.n_seq_max == 1
        self._chunked, self.mirrored = chunked, mirrored
        self._lists, self._branches = table, branches
        self._trees: dict[int, DraftTree] = {}  # by sequence
        self._branch_lengths: list[int] = []  # of the branches placed last
        self._changed: dict[int, int] = {}  # first changed entry by sequence, if mirrored
        self._lengths = [0] * self.n_seq_max
        self._evicted = [-1] * self.n_seq_max  # last evicted position, by sequence
        self.encoded: dict[int, int] = {}
        self.reduced: dict[int, int] = {}
        self._n_refs = np.zeros(self.n_cells, np.int32)  # sequences that have the cell
        # of one item, a memoryview's is cheaper than NumPy's
        self._list_items, self._n_ref_items = self._lists.data, self._n_refs.data
        self._n_used = 0
        self._next = 0  # first cell to try; lower ones are probably used
        self.pending = Pending(np.zeros(self.n_cells, np.int32))

    def changed_entries(self) -> list[tuple[int, int, int]]:
        """(sequence, first, end) of the entries changed since the last call."""
        changed, self._changed = self._changed, {}
        ends = {seq: self._lengths[seq] + tree.depth for seq, tree in self._trees.items()}
        return [(s, first, ends.get(s, self._lengths[s])) for s, first in changed.items()]

    def changed_branches(self) -> list[tuple[int, int]]:
        """(branch, number of entries) of the branches written since the last call."""
        lengths, self._branch_lengths = self._branch_lengths, []
        return list(enumerate(lengths))

    def _note_change(self, seq: int, first: int) -> None:
        """Record that entries of a sequence from ``first`` on changed."""
        if self.mirrored:
            self._changed[seq] = min(self._changed.get(seq, first), first)

    @property
    def n_used(self) -> int:
        """Number of cells that belong to any sequence."""
        return self._n_used

    def length(self, seq: int) -> int:
        """Number of cells of a sequence."""
        self._check_seq(seq)
        return self._lengths[seq]

    def entries(self, seq: int) -> Ints:
        """The list (cell, position) of a sequence, int32[n, 2]; a view."""
        self._check_seq(seq)
        entries: Ints = self._lists[seq, : self._lengths[seq]]
        return entries

    def evicted(self, seq: int) -> int:
        """The last evicted position of a sequence, -1 for none."""
        return self._evicted[seq]

    def seq_pos_max(self, seq: int) -> int:
        """The last position of a sequence, -1 where it is empty."""
        self._check_seq(seq)
        n = self._lengths[seq]
        return int(self._lists[seq, n - 1, 1]) if n else -1

    def seq_pos_min(self, seq: int) -> int:
        """The first position of a sequence, -1 where it is empty."""
        self._check_seq(seq)
        return int(self._lists[seq, 0, 1]) if self._lengths[seq] else -1

    def index(self, seq: int, position: int) -> int:
        """Number of entries of a sequence before a position."""
        n, items = self._lengths[seq], self._list_items
        if not n or position > items[seq, n - 1, 1]:
            return n
        if 0 <= position < n and items[seq, position, 1] == position:  # nothing was removed before
            return position
        return int(np.searchsorted(self._lists[seq, :n, 1], position))

    def window_start(self, position: int) -> int:
        """The first position in the window of a token."""
        if self._chunked:
            return position // self.window * self.window
        return position - self.window + 1

    def n_outside_window(self, entries: Ints, start: int) -> int:
        """Number of leading entries outside of the window of all tokens from ``start`` on.

        Rounded down to whole chunks, at which attention cuts lists: evicting them changes no bits.
        """
        if not self.window:
            return 0
        return int(np.searchsorted(entries[:, 1], self.window_start(start))) // CHUNK * CHUNK

    def clear(self) -> None:
        """Remove everything."""
        self._lengths = [0] * self.n_seq_max
        self._evicted = [-1] * self.n_seq_max
        self.encoded.clear()
        self.reduced.clear()
        self._trees.clear()
        self._n_refs[:] = 0
        self._n_used = self._next = 0
        self.pending.clear()

    def snapshot(self) -> dict[str, Any]:
        """A copy of the lists for ``restore``, without keys and values."""
        return deepcopy({name: getattr(self, name) for name in (*_ARRAYS, *_VALUES)})

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a snapshot."""
        for name in _ARRAYS:
            getattr(self, name)[:] = state[name]
        for name in _VALUES:
            setattr(self, name, state[name])
        for seq in range(self.n_seq_max):
            self._note_change(seq, 0)

    def export_lists(self, seqs: Sequence[int]) -> tuple[Ints, list[Ints]]:
        """The cells of some sequences, and each sequence's list of (index in them, position)."""
        entries = [self.entries(s) for s in seqs]
        cells = np.unique(np.concatenate([e[:, 0] for e in entries]))
        lists = [np.stack([np.searchsorted(cells, e[:, 0]), e[:, 1]], 1) for e in entries]
        return cells, [x.astype(np.int32) for x in lists]

    def room_for(self, lists: Sequence[Ints], n: int, replaced: int | None) -> bool:
        """Whether ``import_lists`` finds cells after removing sequence ``replaced`` (None: all)."""
        if not self.unified:
            size = self.n_cells // self.n_seq_max
            return sum(map(len, lists)) == n and all(len(x) <= size for x in lists)
        if replaced is None:
            return n <= self.n_cells
        n_refs = self._n_refs.copy()
        n_refs[self.entries(replaced)[:, 0]] -= 1
        starts = self._ends()
        del starts[replaced]
        return n <= self._n_free(starts, n_refs)

    def import_lists(
        self, seqs: Sequence[int], lists: Sequence[Ints], evicted: Sequence[int], n: int
    ) -> Ints:
        """Set the lists of empty sequences from ``export_lists``; returns the cells to write."""
        if self.unified:
            self._make_room(n, self._ends())
        cells = np.flatnonzero(self._n_refs == 0)[:n].astype(np.int32)
        for seq, entries, last_evicted in zip(seqs, lists, evicted, strict=False):
            if not self.unified:
                stream = self._stream(seq)
                free = np.flatnonzero(self._n_refs[stream] == 0) + stream.start
                cells = np.resize(cells, n)
                cells[entries[:, 0]] = free[: len(entries)]
            own = cells[entries[:, 0]]
            self._note_change(seq, 0)
            self._lists[seq, : len(entries), 0] = own
            self._lists[seq, : len(entries), 1] = entries[:, 1]
            self._lengths[seq], self._evicted[seq] = len(entries), last_evicted
            self._add_refs(own)
        return cells

    def _stream(self, seq: int | tuple[int, ...]) -> slice:
        """The cells that a sequence may use."""
        if self.unified:
            return slice(0, self.n_cells)
        if not isinstance(seq, int):
            raise BatchError(f"a token of sequences {seq}: they must share cells (kv_unified)")
        size = self.n_cells // self.n_seq_max
        return slice(seq * size, (seq + 1) * size)

    def _range(self, seq: int, p0: int, p1: int) -> tuple[int, int]:
        """Indices in a sequence's list of the positions [p0, p1) (p1 -1: to the end)."""
        first = self.index(seq, max(p0, 0))
        return first, self._lengths[seq] if p1 < 0 else max(first, self.index(seq, p1))

    def _ends(self) -> dict[int, int]:
        """The next position of each sequence."""
        return {s: self.seq_pos_max(s) + 1 for s in range(self.n_seq_max)}

    def _n_free(self, starts: Mapping[int, int], n_refs: Ints) -> int:
        """Free cells after evicting entries outside of the windows of tokens from ``starts``."""
        n_refs = n_refs.copy()
        for s, start in starts.items():
            entries = self.entries(s)
            n_refs[entries[: self.n_outside_window(entries, start), 0]] -= 1
        return int((n_refs == 0).sum())

    def _make_room(self, n: int, starts: Mapping[int, int]) -> None:
        """Evict entries outside of the windows of tokens from ``starts`` until n cells are free."""
        for s, start in starts.items():
            if self.unified and self.n_cells - self._n_used >= n:
                return
            n_evicted = self.n_outside_window(self.entries(s), start)
            if n_evicted:
                self._before_eviction(s, n_evicted)
                self._evicted[s] = int(self._lists[s, n_evicted - 1, 1])
                self._remove(s, 0, n_evicted)

    def _before_eviction(self, seq: int, n: int) -> None:
        """Called before the first ``n`` entries of a sequence are evicted."""

    def _remove(self, seq: int, first: int, last: int) -> None:
        """Remove the entries [first, last) of a list; frees cells without references."""
        n = self._lengths[seq]
        cells = self._lists[seq, first:last, 0].copy()
        self._lists[seq, first : n - (last - first)] = self._lists[seq, last:n].copy()
        self._note_change(seq, first)
        self._lengths[seq] = n - (last - first)
        self._drop_refs(cells)

    def _drop_refs(self, cells: Ints) -> None:
        self._n_refs[cells] -= 1
        freed = cells[self._n_refs[cells] == 0]
        self._n_used -= len(freed)
        if len(freed):
            self.pending.shift[freed] = 0
            self._next = min(self._next, int(freed.min()))

    def _add_refs(self, cells: Ints) -> None:
        self._n_used += int((self._n_refs[cells] == 0).sum())
        self._n_refs[cells] += 1

    def _copy_targets(self, seq: int, cells: Ints) -> Ints:
        """Free cells for copies of ``cells``, which are added to ``pending``."""
        stream = self._stream(seq)
        free = np.flatnonzero(self._n_refs[stream] == 0)[: len(cells)] + stream.start
        self._check_free(len(cells), len(free), stream.stop - stream.start)
        new: Ints = free.astype(np.int32)
        self.pending.copies.append((cells.copy(), new))
        self.pending.any = True
        self.pending.shift[new] = self.pending.shift[cells]
        return new

    def _check_free(self, n: int, free: int, of: int) -> None:
        if n > free:
            raise ContextFull(
                f"the context is full: {n} tokens to store, {free} of {of} cells free; "
                "use a larger `n_ctx` or a shorter prompt"
            )

    def _check_seq(self, seq: int) -> None:
        if not 0 <= seq < self.n_seq_max:
            raise BatchError(f"sequence {seq}: this context has 0 to {self.n_seq_max - 1}")


def seq_tuple(seq: int | tuple[int, ...]) -> tuple[int, ...]:
    """The sequences of a token, as a tuple."""
    return seq if isinstance(seq, tuple) else (seq,)
