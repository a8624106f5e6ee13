"""Which cells of a KV cache belong to which sequences: lists of (cell, position), and nothing else.

    lists = CellLists(table, window=0, unified=True)            # table: int32[n_seq, n_cells, 2]
    cells, places = lists.place([0, 0, (0, 1)], [5, 6, 7])      # the last token is in two of them
    lists.seq_rm(0, 6, -1)                                      # forget positions from 6 on

A cell holds one token's keys and values and may belong to several sequences. A sequence's list is
ordered by position; attention walks it, so a token's result does not depend on which cells it got.
With a ``window``, what no later token can see makes room when room is wanted.

Operations change the lists at once; what they mean for keys and values (copies, and rotation by
changed positions) is noted in ``pending``. Not thread-safe.
Source: llama.cpp, ``llama_kv_cells`` (names of the operations, lazy K-shift).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import BatchError, ContextFull

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


class CellLists:
    """The lists of all sequences.

    Args:
        table: int32[n_seq_max, n_cells, 2], where the lists are kept.
        window: positions that a token sees, its own included; 0 for all before it.
        unified: whether sequences share the cells; otherwise each has an equal part for itself.

    Attributes:
        pending: see ``Pending``.
    """

    def __init__(self, table: Ints, *, window: int = 0, unified: bool = True) -> None:
        self.n_seq_max, self.n_cells = int(table.shape[0]), int(table.shape[1])
        self.window, self.unified = window, unified or self.n_seq_max == 1
        self._lists = table
        self._lengths = [0] * self.n_seq_max
        self._lost = [-1] * self.n_seq_max  # the last position that made room for others
        self._owners = np.zeros(self.n_cells, np.int32)  # sequences that a cell belongs to
        self._n_used = 0
        self._next = 0  # cells below are probably taken
        self.pending = Pending(np.zeros(self.n_cells, np.int32))

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

    def sees(self, seq: int, position: int) -> bool:
        """Whether all that a token at this position attends to is still here."""
        return self._lost[seq] < 0 or self._lost[seq] <= position - self.window

    # -- new tokens ------------------------------------------------------------------------------

    def check_room(self, seqs: Seqs, positions: Sequence[int]) -> None:
        """Whether ``place`` will succeed.

        Raises:
            ContextFull: too few free cells.
            BatchError: a position whose window is no longer here.
        """
        if self.window:
            first = dict(zip(reversed(seqs), reversed(positions), strict=True))
            for seq, position in first.items():
                for s in each(seq):
                    if not self.sees(s, position):
                        raise BatchError(
                            f"position {position} of sequence {s}: the cache of {self.n_cells} "
                            f"cells for a window of {self.window} kept only positions from "
                            f"{self._lost[s] + 1} on; start the sequence again, or use --swa-full"
                        )
            return  # what is hidden makes room, and the cache is large enough for the rest
        if self.unified:
            self._check_free(len(seqs), self.n_cells - self._n_used, self.n_cells)
            return
        size = self.n_cells // self.n_seq_max
        for seq in set(seqs):
            free = int((self._owners[self._stream(seq)] == 0).sum())
            self._check_free(sum(s == seq for s in seqs), free, size)

    def _check_free(self, n: int, free: int, of: int) -> None:
        if n > free:
            raise ContextFull(
                f"the context is full: {n} tokens wanted, {free} of {of} cells free; "
                "use a larger context (-c, n_ctx) or a shorter prompt"
            )

    def place(self, seqs: Seqs, positions: Sequence[int]) -> tuple[list[int], list[int]]:
        """Cells for new tokens, which are appended to their sequences' lists.

        Args:
            seqs: the sequence of each token, or several; positions: rising within a sequence.

        Returns:
            The cell of each token, and its place in the list of its (first) sequence.

        Raises:
            ContextFull, BatchError: as `check_room`; nothing has changed.
        """
        n = len(seqs)
        self.check_room(seqs, positions)
        if self.window:
            self._make_room(seqs, positions)
        cells = self._free_cells(seqs)
        lengths, places = self._lengths.copy(), []
        owners = np.ones(n, np.int32)
        for i, (seq, position) in enumerate(zip(seqs, positions, strict=True)):
            group = each(seq)
            places.append(lengths[group[0]])
            for s in group:
                self._lists[s, lengths[s]] = cells[i], position
                lengths[s] += 1
            owners[i] = len(group)
        # Only now does anything change: an interrupt above leaves no half-placed batch.
        self._owners[cells] = owners
        self._n_used += n
        self._lengths = lengths
        self._next = cells[-1] + 1 if n else self._next
        return cells, places

    def append(self, seq: int) -> tuple[int, int, int] | None:
        """``place`` of a sequence's next token in the next cell: the step between two tokens.

        Returns:
            Cell, place and position; None where finding a cell takes more thought.
        """
        cell, place = self._next, self._lengths[seq]
        if cell >= self.n_cells or self._owners[cell] or self.window or not self.unified:
            return None
        position = int(self._lists[seq, place - 1, 1]) + 1 if place else 0
        if position > MAX_POSITION:
            return None
        self._lists[seq, place, 0], self._lists[seq, place, 1] = cell, position
        self._owners[cell] = 1
        self._n_used += 1
        self._lengths[seq] = place + 1
        self._next = cell + 1
        return cell, place, position

    def _stream(self, seq: int | tuple[int, ...]) -> slice:
        """The cells that a sequence may use."""
        if self.unified:
            return slice(0, self.n_cells)
        if not isinstance(seq, int):
            raise BatchError(f"a token of sequences {seq}: they must share cells (kv_unified)")
        size = self.n_cells // self.n_seq_max
        return slice(seq * size, (seq + 1) * size)

    def _free_cells(self, seqs: Seqs) -> list[int]:
        """Free cells, in one run where that is easy."""
        n, first = len(seqs), self._next
        if self.unified:
            window = self._owners[first : first + n]
            if len(window) == n and not window.any():
                return list(range(first, first + n))
            some: list[int] = np.flatnonzero(self._owners == 0)[:n].tolist()
            return some
        free: dict[int | tuple[int, ...], list[int]] = {}
        for seq in set(seqs):
            part = self._stream(seq)
            found = np.flatnonzero(self._owners[part] == 0) + part.start
            free[seq] = found[::-1].tolist()
        return [free[seq].pop() for seq in seqs]

    def _make_room(self, seqs: Seqs, positions: Sequence[int]) -> None:
        """Let go of what no later token sees, if cells are wanted; in whole chunks of the lists.

        Attention cuts lists at multiples of a chunk, so the bits stay those of a full cache.
        """
        if self.unified and self.n_cells - self._n_used >= len(seqs):
            return
        starts = {s: self.seq_pos_max(s) + 1 for s in range(self.n_seq_max)}
        for seq, position in zip(seqs, positions, strict=True):
            for s in each(seq):
                starts[s] = min(starts[s], position)
        for s, start in starts.items():
            if self.unified and self.n_cells - self._n_used >= len(seqs):
                return
            hidden = self.index(s, start - self.window + 1) // CHUNK * CHUNK
            if hidden:
                self._lost[s] = int(self._lists[s, hidden - 1, 1])
                self._remove(s, 0, hidden)

    def rows(
        self, seqs: Seqs, positions: Sequence[int], places: Sequence[int], causal: bool = True
    ) -> Ints:
        """What tokens just placed attend to: int32[n, 4], see ``flash_attn_cells``."""
        first = [seq if isinstance(seq, int) else seq[0] for seq in seqs]
        rows = np.zeros((len(seqs), 4), np.int32)
        rows[:, 0], rows[:, 3] = first, positions
        if self.window:
            starts = zip(first, positions, strict=True)
            rows[:, 1] = [self.index(s, position - self.window + 1) for s, position in starts]
        rows[:, 2] = [p + 1 for p in places] if causal else [self._lengths[s] for s in first]
        return rows

    # -- operations on sequences -----------------------------------------------------------------

    def clear(self) -> None:
        """Forget everything."""
        self._lengths = [0] * self.n_seq_max
        self._lost = [-1] * self.n_seq_max
        self._owners[:] = 0
        self._n_used = self._next = 0
        self.pending.clear()

    def seq_rm(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        """Forget positions p0 up to, not with, p1 (-1: the end) of a sequence (-1: of all)."""
        for s in range(self.n_seq_max) if seq < 0 else (seq,):
            self._check_seq(s)
            self._remove(s, *self._range(s, p0, p1))
            if p0 <= 0 and not self._lengths[s]:
                self._lost[s] = -1  # nothing is left of the sequence, here or in other caches

    def seq_cp(self, source: int, target: int, p0: int = 0, p1: int = -1) -> None:
        """Let positions of one sequence belong to another too.

        No keys or values are copied, unless each sequence has cells of its own.

        Raises:
            BatchError: the target already reaches those positions; nothing has changed.
            ContextFull: cells of its own do not suffice; nothing has changed.
        """
        self._check_seq(source)
        self._check_seq(target)
        if source == target:
            return
        first, last = self._range(source, p0, p1)
        part = self._lists[source, first:last].copy()
        n = self._lengths[target]
        if n and len(part) and int(part[0, 1]) <= self.seq_pos_max(target):
            raise BatchError(
                f"sequence {target} already reaches position {self.seq_pos_max(target)}: "
                f"cannot take position {int(part[0, 1])} of sequence {source} behind it"
            )
        if not self.unified:
            part[:, 0] = self._copied(target, part[:, 0])
        self._lists[target, n : n + len(part)] = part
        self._own(part[:, 0])
        self._lengths[target] = n + len(part)
        self._lost[target] = max(self._lost[target], self._lost[source] if first == 0 else -1)

    def seq_keep(self, seq: int) -> None:
        """Forget every other sequence."""
        self._check_seq(seq)
        for other in range(self.n_seq_max):
            if other != seq:
                self.seq_rm(other)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move positions p0 up to, not with, p1 (-1: the end) by ``delta``; below 0 they go.

        Raises:
            BatchError: positions would pass others; nothing has changed.
            ContextFull: a cell is shared with another sequence, and none is free for a copy.
        """
        self._check_seq(seq)
        first, last = self._range(seq, p0, p1)
        self._move(seq, first, last, self._lists[seq, first:last, 1] + np.int32(delta))
        if p0 <= self._lost[seq] and (p1 < 0 or self._lost[seq] < p1):
            self._lost[seq] = max(-1, self._lost[seq] + delta)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Divide positions p0 up to, not with, p1 (-1: the end) by ``d``, rounding down.

        Several cells may end up at one position. Raises: as `seq_add`.
        """
        self._check_seq(seq)
        if d < 1:
            raise BatchError(f"seq_div by {d}, want 1 or more")
        first, last = self._range(seq, p0, p1)
        self._move(seq, first, last, self._lists[seq, first:last, 1] // np.int32(d))

    def snapshot(self) -> dict[str, Any]:
        """The lists as they are, for ``restore``; not the keys and values."""
        return deepcopy({name: getattr(self, name) for name in _STATE})

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a snapshot."""
        self._lists[:] = state["_lists"]
        for name in _STATE[1:]:
            setattr(self, name, state[name])

    def lost(self, seq: int) -> int:
        """The last position of a sequence that has made room for others, -1 for none."""
        return self._lost[seq]

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
            return bool(n <= self.n_cells)
        freed = int((self._owners[self.entries(replaced)[:, 0]] == 1).sum())
        return bool(n <= self.n_cells - self._n_used + freed)

    def put_lists(
        self, seqs: Sequence[int], lists: Sequence[Ints], lost: Sequence[int], n: int
    ) -> Ints:
        """Give empty sequences the lists of ``take_lists``; returns the cells to be filled."""
        cells = np.flatnonzero(self._owners == 0)[:n].astype(np.int32)
        for seq, entries, gone in zip(seqs, lists, lost, strict=False):
            if not self.unified:
                stream = self._stream(seq)
                free = np.flatnonzero(self._owners[stream] == 0) + stream.start
                cells = np.resize(cells, n)
                cells[entries[:, 0]] = free[: len(entries)]
            own = cells[entries[:, 0]]
            self._lists[seq, : len(entries), 0] = own
            self._lists[seq, : len(entries), 1] = entries[:, 1]
            self._lengths[seq], self._lost[seq] = len(entries), gone
            self._own(own)
        return cells

    def _range(self, seq: int, p0: int, p1: int) -> tuple[int, int]:
        """Indices in a sequence's list of positions p0 up to p1 (-1: the end)."""
        first = self.index(seq, max(p0, 0))
        return first, self._lengths[seq] if p1 < 0 else max(first, self.index(seq, p1))

    def _remove(self, seq: int, first: int, last: int) -> None:
        """Take entries out of a list; cells of no sequence are free again."""
        n = self._lengths[seq]
        cells = self._lists[seq, first:last, 0].copy()
        self._lists[seq, first : n - (last - first)] = self._lists[seq, last:n].copy()
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

    def _move(self, seq: int, first: int, last: int, positions: Ints) -> None:
        """Give the entries from first up to last new positions."""
        n, old = self._lengths[seq], self._lists[seq]
        gone = int((positions < 0).sum())
        before, behind = old[first - 1, 1] if first else -1, old[last, 1] if last < n else None
        kept = positions[gone:]
        if len(kept) and (kept[0] < before or (behind is not None and kept[-1] > behind)):
            raise BatchError(
                f"positions {int(old[first, 1])} to {int(old[last - 1, 1])} of sequence {seq} "
                f"cannot become {int(kept[0])} to {int(kept[-1])}: others are in the way"
            )
        part = old[first + gone : last].copy()
        shared = self._owners[part[:, 0]] > 1
        if shared.any():  # another sequence needs the old keys: rotate a copy
            copies = self._copied(seq, part[shared, 0])
            self._owners[part[shared, 0]] -= 1
            part[shared, 0] = copies
            self._own(copies)
        self.pending.shift[part[:, 0]] += kept - part[:, 1]
        self.pending.any = True
        part[:, 1] = kept
        old[first + gone : last] = part
        if gone:
            self._remove(seq, first, first + gone)

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

    def _check_seq(self, seq: int) -> None:
        if not 0 <= seq < self.n_seq_max:
            raise BatchError(f"sequence {seq}: this context has 0 to {self.n_seq_max - 1}")


def each(seq: int | tuple[int, ...]) -> tuple[int, ...]:
    """The sequences of a token."""
    return seq if isinstance(seq, tuple) else (seq,)
