"""The table of a KV cache: each sequence's list of (cell, position), and which cells are free.

    table = CellTable(array, window=0, unified=True)            # array: int32[n_seq, n_cells, 2]
    table.entries(0), table.seq_pos_max(0), table.n_used
    cells, lists = table.take_lists([0, 1])                     # for a saved state

What happens to it is `CellLists`'s to say. Not thread-safe.
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
CHUNK = 256  # entries that attention takes at a time: lists are cut at multiples of it only
Ints = npt.NDArray[np.int32]
_STATE = ("_lists", "_lengths", "_lost", "_owners", "_n_used", "_next", "pending")
Seqs = Sequence[int | tuple[int, ...]]  # of each token: its sequence, or several


@dataclass
class Pending:
    """What has to happen to keys and values before the next decode.

    Attributes:
        copies: pairs of cells, source and target, to be copied in this order.
        shift: for each cell, by how many positions its keys have to be rotated afterwards.
        any: whether there may be something: what every decode asks.
    """

    shift: Ints
    copies: list[tuple[Ints, Ints]] = field(default_factory=list)
    any: bool = False

    def clear(self) -> None:
        """Everything is done."""
        if self.any:
            self.copies = []
            self.shift[:] = 0
            self.any = False


class CellTable:
    """The lists of all sequences, and the owners of all cells.

    Args:
        table: int32[n_seq_max, n_cells, 2], where the lists are kept.
        window: positions that a token sees, its own included; 0 for all before it.
        unified: whether sequences share the cells; otherwise each has an equal part for itself.
        mirrored: whether to note what changes, for ``changed_entries``.

    Attributes:
        pending: see ``Pending``.
    """

    def __init__(
        self, table: Ints, *, window: int = 0, unified: bool = True, mirrored: bool = False
    ) -> None:
        self.n_seq_max, self.n_cells = int(table.shape[0]), int(table.shape[1])
        self.window, self.unified = window, unified or self.n_seq_max == 1
        self._lists = table
        self._changed: dict[int, int] | None = {} if mirrored else None  # first entry by sequence
        self._lengths = [0] * self.n_seq_max
        self._lost = [-1] * self.n_seq_max  # the last position that made room for others
        self._owners = np.zeros(self.n_cells, np.int32)  # sequences that a cell belongs to
        self._n_used = 0
        self._next = 0  # cells below are probably taken
        self.pending = Pending(np.zeros(self.n_cells, np.int32))

    @property
    def mirrored(self) -> bool:
        """Whether devices have copies of the lists that must follow them."""
        return self._changed is not None

    def changed_entries(self) -> list[tuple[int, int, int]]:
        """(sequence, first, end) of the entries that changed since this was asked before."""
        if not self._changed:
            return []
        changed, self._changed = self._changed, {}
        return [(seq, first, self._lengths[seq]) for seq, first in changed.items()]

    def _note_change(self, seq: int, first: int) -> None:
        """Entries of a sequence from ``first`` on differ from what a device has."""
        if self._changed is not None:
            self._changed[seq] = min(self._changed.get(seq, first), first)

    @property
    def n_used(self) -> int:
        """Cells that belong to a sequence."""
        return self._n_used

    def length(self, seq: int) -> int:
        """Cells of a sequence."""
        self._check_seq(seq)
        return self._lengths[seq]

    def entries(self, seq: int) -> Ints:
        """(cell, position) of a sequence in order, int32[n, 2]; a view."""
        self._check_seq(seq)
        entries: Ints = self._lists[seq, : self._lengths[seq]]
        return entries

    def lost(self, seq: int) -> int:
        """The last position of a sequence that has made room for others, -1 for none."""
        return self._lost[seq]

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
        """How many cells of a sequence lie before a position."""
        n = self._lengths[seq]
        return int(np.searchsorted(self._lists[seq, :n, 1], position))

    def n_hidden(self, entries: Ints, start: int) -> int:
        """How many of the first (cell, position) no token from ``start`` on sees, in whole chunks.

        Attention cuts lists at multiples of a chunk, so the bits stay those of a full cache.
        """
        if not self.window:
            return 0
        return int(np.searchsorted(entries[:, 1], start - self.window + 1)) // CHUNK * CHUNK

    def clear(self) -> None:
        """Forget everything."""
        self._lengths = [0] * self.n_seq_max
        self._lost = [-1] * self.n_seq_max
        self._owners[:] = 0
        self._n_used = self._next = 0
        self.pending.clear()

    def snapshot(self) -> dict[str, Any]:
        """The lists as they are, for ``restore``; not the keys and values."""
        return deepcopy({name: getattr(self, name) for name in _STATE})

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a snapshot."""
        self._lists[:] = state["_lists"]
        for seq in range(self.n_seq_max):
            self._note_change(seq, 0)
        for name in _STATE[1:]:
            setattr(self, name, state[name])

    def take_lists(self, seqs: Sequence[int]) -> tuple[Ints, list[Ints]]:
        """The cells of some sequences, and (index into these, position) of each sequence."""
        entries = [self.entries(s) for s in seqs]
        cells = np.unique(np.concatenate([e[:, 0] for e in entries]))
        lists = [np.stack([np.searchsorted(cells, e[:, 0]), e[:, 1]], 1) for e in entries]
        return cells, [x.astype(np.int32) for x in lists]

    def room_for(self, lists: Sequence[Ints], n: int, replaced: int | None) -> bool:
        """Whether ``put_lists`` will find cells, once sequence ``replaced`` (None: all) is gone."""
        if not self.unified:
            size = self.n_cells // self.n_seq_max
            return sum(map(len, lists)) == n and all(len(x) <= size for x in lists)
        if replaced is None:
            return n <= self.n_cells
        owners = self._owners.copy()
        owners[self.entries(replaced)[:, 0]] -= 1
        starts = self._ends()
        del starts[replaced]
        return n <= self._n_free(starts, owners)

    def put_lists(
        self, seqs: Sequence[int], lists: Sequence[Ints], lost: Sequence[int], n: int
    ) -> Ints:
        """Give empty sequences the lists of ``take_lists``; returns the cells to be filled."""
        if self.unified:
            self._make_room(n, self._ends())
        cells = np.flatnonzero(self._owners == 0)[:n].astype(np.int32)
        for seq, entries, gone in zip(seqs, lists, lost, strict=False):
            if not self.unified:
                stream = self._stream(seq)
                free = np.flatnonzero(self._owners[stream] == 0) + stream.start
                cells = np.resize(cells, n)
                cells[entries[:, 0]] = free[: len(entries)]
            own = cells[entries[:, 0]]
            self._note_change(seq, 0)
            self._lists[seq, : len(entries), 0] = own
            self._lists[seq, : len(entries), 1] = entries[:, 1]
            self._lengths[seq], self._lost[seq] = len(entries), gone
            self._own(own)
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
        """Indices in a sequence's list of positions p0 up to p1 (-1: the end)."""
        first = self.index(seq, max(p0, 0))
        return first, self._lengths[seq] if p1 < 0 else max(first, self.index(seq, p1))

    def _ends(self) -> dict[int, int]:
        """Where each sequence goes on."""
        return {s: self.seq_pos_max(s) + 1 for s in range(self.n_seq_max)}

    def _n_free(self, starts: Mapping[int, int], owners: Ints) -> int:
        """Free cells once what no token of a sequence from its start on sees has gone."""
        owners = owners.copy()
        for s, start in starts.items():
            entries = self.entries(s)
            owners[entries[: self.n_hidden(entries, start), 0]] -= 1
        return int((owners == 0).sum())

    def _make_room(self, n: int, starts: Mapping[int, int]) -> None:
        """Let go of what no token of a sequence from its start on sees, if n cells are wanted."""
        for s, start in starts.items():
            if self.unified and self.n_cells - self._n_used >= n:
                return
            hidden = self.n_hidden(self.entries(s), start)
            if hidden:
                self._lost[s] = int(self._lists[s, hidden - 1, 1])
                self._remove(s, 0, hidden)

    def _remove(self, seq: int, first: int, last: int) -> None:
        """Take entries out of a list; cells of no sequence are free again."""
        n = self._lengths[seq]
        cells = self._lists[seq, first:last, 0].copy()
        self._lists[seq, first : n - (last - first)] = self._lists[seq, last:n].copy()
        self._note_change(seq, first)
        self._lengths[seq] = n - (last - first)
        self._owners[cells] -= 1
        freed = cells[self._owners[cells] == 0]
        self._n_used -= len(freed)
        if len(freed):
            self.pending.shift[freed] = 0
            self._next = min(self._next, int(freed.min()))

    def _own(self, cells: Ints) -> None:
        self._n_used += int((self._owners[cells] == 0).sum())
        self._owners[cells] += 1

    def _copied(self, seq: int, cells: Ints) -> Ints:
        """Free cells that will hold copies of ``cells``."""
        stream = self._stream(seq)
        free = np.flatnonzero(self._owners[stream] == 0)[: len(cells)] + stream.start
        self._check_free(len(cells), len(free), stream.stop - stream.start)
        new: Ints = free.astype(np.int32)
        self.pending.copies.append((cells.copy(), new))
        self.pending.any = True
        self.pending.shift[new] = self.pending.shift[cells]
        return new

    def _check_free(self, n: int, free: int, of: int) -> None:
        if n > free:
            raise ContextFull(
                f"the context is full: {n} tokens wanted, {free} of {of} cells free; "
                "use a larger `n_ctx` or a shorter prompt"
            )

    def _check_seq(self, seq: int) -> None:
        if not 0 <= seq < self.n_seq_max:
            raise BatchError(f"sequence {seq}: this context has 0 to {self.n_seq_max - 1}")


def each(seq: int | tuple[int, ...]) -> tuple[int, ...]:
    """The sequences of a token."""
    return seq if isinstance(seq, tuple) else (seq,)
