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

import numpy as np

from ..errors import BatchError
from .table import CellTable, Ints, Seqs, each


class CellLists(CellTable):
    """What sequences can do: take new tokens, and the operations of llama.h.

    Args:
        table, window, unified: see `CellTable`.
    """

    # -- new tokens ------------------------------------------------------------------------------

    def sees(self, seq: int, position: int) -> bool:
        """Whether all that a token at this position attends to is still here."""
        return self._lost[seq] < 0 or self._lost[seq] <= position - self.window

    def check_window(self, seqs: Seqs, positions: Sequence[int]) -> None:
        """Whether all that these tokens attend to is still here. Raises: BatchError."""
        if not self.window:
            return
        first = dict(zip(reversed(seqs), reversed(positions), strict=True))
        for seq, position in first.items():
            for s in each(seq):
                if not self.sees(s, position):
                    raise BatchError(
                        f"position {position} of sequence {s}: the cache of {self.n_cells} "
                        f"cells for a window of {self.window} kept only positions from "
                        f"{self._lost[s] + 1} on; start the sequence again, or use `swa_full=True`"
                    )

    def check_room(self, seqs: Seqs, positions: Sequence[int]) -> None:
        """Whether ``place`` will succeed.

        Raises:
            ContextFull: too few free cells, also when what a window hides has made room.
            BatchError: a position whose window is no longer here.
        """
        self.check_window(seqs, positions)
        if self.unified:
            free = self.n_cells - self._n_used
            if len(seqs) > free and self.window:
                free = self._n_free(self._starts(seqs, positions), self._owners)
            self._check_free(len(seqs), free, self.n_cells)
            return
        size = self.n_cells // self.n_seq_max
        starts = self._starts(seqs, positions) if self.window else {}
        for seq in set(seqs):
            free = int((self._owners[self._stream(seq)] == 0).sum())
            for s in each(seq) if self.window else ():
                free += self.n_hidden(self.entries(s), starts[s])
            self._check_free(sum(s == seq for s in seqs), free, size)

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
        if self.window and not (self.unified and self.n_cells - self._n_used >= n):
            self._make_room(n, self._starts(seqs, positions))
        cells = self._free_cells(seqs)
        lengths, places = self._lengths.copy(), []
        owners, entries = [], []
        for cell, seq, position in zip(cells, seqs, positions, strict=True):
            group = each(seq)
            places.append(lengths[group[0]])
            owners.append(len(group))
            for s in group:
                entries.append((s, lengths[s], cell, position))
                lengths[s] += 1
        new = np.array(entries, np.int32).reshape(-1, 4)
        self._lists[new[:, 0], new[:, 1]] = new[:, 2:]
        if self._changed is not None:
            for s, place, _, _ in entries:
                self._note_change(s, place)
        # Only now does anything change: an interrupt above leaves no half-placed batch.
        self._owners[cells] = owners
        self._n_used += n
        self._lengths = lengths
        self._next = cells[-1] + 1 if n else self._next
        return cells, places

    def append(self, seq: int, last: int) -> tuple[int, int, int] | None:
        """``place`` of a sequence's next token in the next cell: the step between two tokens.

        Args:
            last: the last position that there is.

        Returns:
            Cell, place and position; None where finding a cell takes more thought.
        """
        cell, place = self._next, self._lengths[seq]
        if cell >= self.n_cells or self._owners[cell] or self.window or not self.unified:
            return None
        position = int(self._lists[seq, place - 1, 1]) + 1 if place else 0
        if position > last:
            return None
        self._lists[seq, place, 0], self._lists[seq, place, 1] = cell, position
        if self._changed is not None:
            self._note_change(seq, place)
        self._owners[cell] = 1
        self._n_used += 1
        self._lengths[seq] = place + 1
        self._next = cell + 1
        return cell, place, position

    def _starts(self, seqs: Seqs, positions: Sequence[int]) -> dict[int, int]:
        """Where each sequence goes on, with these tokens."""
        starts = self._ends()
        for seq, position in zip(seqs, positions, strict=True):
            for s in each(seq):
                starts[s] = min(starts[s], position)
        return starts

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

    def seq_rm(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        """Forget positions p0 up to, not with, p1 (-1: the end) of a sequence (-1: of all)."""
        for s in range(self.n_seq_max) if seq < 0 else (seq,):
            self._check_seq(s)
            self._remove(s, *self._range(s, p0, p1))
            if self._is_lost_in(s, p0, p1):
                self._lost[s] = max(p0, 0) - 1  # forgotten ones are missed by no one

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
        self._note_change(target, n)
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
        if self._is_lost_in(seq, p0, p1):
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
        if self._is_lost_in(seq, p0, p1):
            self._lost[seq] //= d

    def _is_lost_in(self, seq: int, p0: int, p1: int) -> bool:
        """Whether the last position that made room is one of p0 up to p1."""
        return p0 <= self._lost[seq] and (p1 < 0 or self._lost[seq] < p1)

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
        self._note_change(seq, first)
        if gone:
            self._remove(seq, first, first + gone)
