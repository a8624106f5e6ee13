"""Operations on the sequences of a KV cache: new tokens, removal, copies and shifts.

    lists = CellLists(table, branches, window=0, unified=True)  # storage: see `CellTable`
    cells, places = lists.place([0, 0, (0, 1)], [5, 6, 7])      # the last token has two sequences
    lists.seq_rm(0, 6, -1)                                      # remove positions from 6 on
    cells, rows = lists.place_tree([0, 0, 0], [6, 7, 7], [-1, 0, 0])
    lists.commit_tree(0, [0, 2])                                # the second branch continues 0

A cell holds one token's keys and values and may belong to several sequences. A sequence's list is
ordered by position. Attention reads cells in this order, so results do not depend on the cells.
With a ``window``, entries outside of it are evicted when cells run out.

Operations change the lists at once. The copies of keys and values, and the rotation of keys to
their new positions, are recorded in ``pending``. Not thread-safe.
Source: llama.cpp, ``llama_kv_cells`` (names of the operations, lazy K-shift).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ..errors import BatchError
from .table import CHUNK, MAX_BRANCHES, CellTable, DraftTree, Ints, Seqs, seq_tuple


class CellLists(CellTable):
    """A cell table with the operations of llama.h on sequences.

    Args:
        table, branches, window, unified: see `CellTable`.
    """

    # -- new tokens ------------------------------------------------------------------------------

    def sees(self, seq: int, position: int) -> bool:
        """Whether no entry in the window of a token at this position was evicted."""
        return self._evicted[seq] < 0 or self._evicted[seq] < self.window_start(position)

    def check_window(self, seqs: Seqs, positions: Sequence[int]) -> None:
        """Raise BatchError if an entry in the window of one of these tokens was evicted."""
        if not self.window:
            return
        first = dict(zip(reversed(seqs), reversed(positions), strict=True))
        for seq, position in first.items():
            for s in seq_tuple(seq):
                if not self.sees(s, position):
                    raise BatchError(
                        f"position {position} of sequence {s}: the cache of {self.n_cells} "
                        f"cells for a window of {self.window} kept only positions from "
                        f"{self._evicted[s] + 1} on; clear the sequence, or use `swa_full=True`"
                    )

    def check_room(self, seqs: Seqs, positions: Sequence[int]) -> None:
        """Raise the error that ``place`` would raise.

        Raises:
            ContextFull: too few free cells, counting those that can be evicted.
            BatchError: entries in the window of a token were evicted.
        """
        self.check_window(seqs, positions)
        if self.unified:
            free = self.n_cells - self._n_used
            if len(seqs) > free and self.window:
                free = self._n_free(self._starts(seqs, positions), self._n_refs)
            self._check_free(len(seqs), free, self.n_cells)
            return
        size = self.n_cells // self.n_seq_max
        starts = self._starts(seqs, positions) if self.window else {}
        for seq, n in Counter(seqs).items():
            self._stream(seq)  # raises for a tuple of sequences
            free = size
            for s in seq_tuple(seq):
                free -= self._lengths[s]
                if self.window:
                    free += self.n_outside_window(self.entries(s), starts[s])
            self._check_free(n, free, size)

    def place(self, seqs: Seqs, positions: Sequence[int]) -> tuple[list[int], list[int]]:
        """Assign cells to new tokens, and append them to their sequences' lists.

        Args:
            seqs: the sequence of each token, or a tuple of several.
            positions: of each token, ascending within a sequence.

        Returns:
            The cell of each token, and its index in the list of its (first) sequence.

        Raises:
            ContextFull, BatchError: as `check_room`; nothing has changed.
        """
        n = len(seqs)
        cells = self._new_cells(seqs, positions)
        lengths, lists, places, n_refs = self._lengths.copy(), self._list_items, [], []
        for cell, seq, position in zip(cells, seqs, positions, strict=True):
            group = seq_tuple(seq)
            places.append(lengths[group[0]])
            n_refs.append(len(group))
            for s in group:
                place = lengths[s]
                lists[s, place, 0], lists[s, place, 1] = cell, position
                lengths[s] = place + 1
                if self.mirrored:
                    self._note_change(s, place)
        # State changes only from here on, so that an interrupt above leaves it consistent.
        self._n_refs[cells] = n_refs
        self._n_used += n
        self._lengths = lengths
        self._next = cells[-1] + 1 if n else self._next
        return cells, places

    def append(self, seq: int, last: int) -> tuple[int, int, int] | None:
        """Fast ``place`` of the next token of one sequence in the next cell.

        Args:
            last: the largest legal position.

        Returns:
            Its cell, index in the list and position; None where ``place`` must be used.
        """
        if self._trees:
            self.drop_tree(seq)
        cell, place = self._next, self._lengths[seq]
        lists, n_refs = self._list_items, self._n_ref_items
        if cell >= self.n_cells or self.window or not self.unified or n_refs[cell]:
            return None
        position: int = lists[seq, place - 1, 1] + 1 if place else 0
        if position > last:
            return None
        lists[seq, place, 0], lists[seq, place, 1], n_refs[cell] = cell, position, 1
        if self.mirrored:
            self._note_change(seq, place)
        self._n_used += 1
        self._lengths[seq] = place + 1
        self._next = cell + 1
        return cell, place, position

    def drop_last(self, seq: int, n: int) -> None:
        """Fast ``seq_rm`` of a few of the last entries of a sequence; at least one must stay."""
        if self._trees:
            self.drop_tree(seq)
        length, lists, n_refs = self._lengths[seq], self._list_items, self._n_ref_items
        for place in range(length - n, length):
            cell = lists[seq, place, 0]
            n_refs[cell] -= 1
            if not n_refs[cell]:
                self._n_used -= 1
                self._next = min(self._next, cell)
                if self.pending.any:
                    self.pending.shift[cell] = 0
        self._lengths[seq] = length - n
        self._note_change(seq, length - n)

    def place_tree(
        self, seqs: Sequence[int], positions: Sequence[int], parents: Sequence[int]
    ) -> tuple[list[int], Ints]:
        """Assign cells to the nodes of trees, each of which follows the end of its sequence.

        The nodes are not in the sequences' lists until ``commit_tree``; the next change of a
        sequence drops them.

        Args:
            seqs: the sequence of each node.
            positions: of each node; those of a path are consecutive.
            parents: index of the node that each follows, lower than its own; -1: the last entry of
                its sequence.

        Returns:
            The cell of each node, and the rows of ``flash_attn_cells`` with branches, int32[n, 6].

        Raises:
            ContextFull, BatchError: as ``place``, or too many branches; no node was placed.
        """
        longest: dict[int, list[int]] = {}
        others = []
        for path in _paths(positions, parents):
            if longest.setdefault(seqs[path[0]], path) is not path:
                others.append(path)
        if len(others) > MAX_BRANCHES:
            raise BatchError(
                f"the trees of this batch have {len(others)} branches besides the longest path of "
                f"each, want at most {MAX_BRANCHES}; draft narrower trees"
            )
        cells = self._new_cells(seqs, positions)
        entries = np.array([cells, positions], np.int32).T
        rows = np.zeros((len(seqs), 6), np.int32)
        rows[:, 0], rows[:, 3] = seqs, positions
        trees = {}
        for seq, path in longest.items():
            length = self._lengths[seq]
            self._lists[seq, length : length + len(path)] = entries[path]
            self._note_change(seq, length)
            nodes = [i for i, s in enumerate(seqs) if s == seq]
            self._set_spans(seq, rows, nodes, positions[path[0]])
            index = {-1: -1} | {node: i for i, node in enumerate(nodes)}
            of_nodes = [index[parents[i]] for i in nodes], [cells[i] for i in nodes]
            trees[seq] = DraftTree(*of_nodes, depth=len(path))
        self._write_branches(others, entries, rows, {i for path in longest.values() for i in path})
        self._n_refs[cells] = 1
        self._n_used += len(cells)
        self._trees |= trees
        self._next = cells[-1] + 1
        return cells, rows

    def _set_spans(self, seq: int, rows: Ints, nodes: list[int], base: int) -> None:
        """Set first and end index in ``rows`` of the nodes of a tree at the positions from base."""
        shift = self._lengths[seq] - base  # from a position in the tree to its index
        rows[nodes, 1], rows[nodes, 2] = self.encoded.get(seq, 0), rows[nodes, 3] + (shift + 1)
        for i in nodes if self.window else ():
            start = self.window_start(int(rows[i, 3]))
            rows[i, 1] = self.index(seq, start) if start < base else start + shift

    def _write_branches(
        self, paths: list[list[int]], entries: Ints, rows: Ints, listed: set[int]
    ) -> None:
        """Write the lists of branches, and the branch of their nodes to ``rows``.

        Args:
            entries: (cell, position) of each node.
            listed: nodes that are in the list of their sequence; gets those of the branches.
        """
        self._branch_lengths = []
        for number, path in enumerate(paths):
            seq = int(rows[path[0], 0])
            length = self._lengths[seq]
            cut = length // CHUNK * CHUNK
            copied = length - cut
            self._branches[number, :copied] = self._lists[seq, cut:length]
            self._branches[number, copied : copied + len(path)] = entries[path]
            self._branch_lengths.append(copied + len(path))
            for node in path:
                if node not in listed:
                    listed.add(node)
                    rows[node, 4:] = cut, number + 1

    def commit_tree(self, seq: int, path: Sequence[int]) -> None:
        """Append the nodes of a path to a sequence's list, and free all other nodes of its tree.

        Args:
            path: indices of nodes among the sequence's nodes, from a root on; it may end before a
                leaf, and may be empty.

        Raises:
            BatchError: the sequence has no tree, or these nodes are no path; nothing has changed.
        """
        self._check_seq(seq)
        tree = self._trees.get(seq)
        if tree is None:
            raise BatchError(f"sequence {seq} has no tree: decode a tree of tokens first")
        last = -1
        for node in path:
            if not 0 <= node < len(tree.parents) or tree.parents[node] != last:
                raise BatchError(
                    f"{list(path)} is no path in the tree of sequence {seq}: {node} does not "
                    f"follow {last}"
                )
            last = node
        first, base, n = self._lengths[seq], self.seq_pos_max(seq) + 1, len(path)
        self._lists[seq, first : first + n, 0] = [tree.cells[i] for i in path]
        self._lists[seq, first : first + n, 1] = range(base, base + n)
        self._note_change(seq, first)
        kept = set(path)
        rest = [cell for i, cell in enumerate(tree.cells) if i not in kept]
        del self._trees[seq]
        self._lengths[seq] = first + n
        self._drop_refs(np.array(rest, np.int32))

    def drop_tree(self, seq: int) -> None:
        """Free the nodes of a sequence's tree, if it has one."""
        if seq in self._trees:
            self.commit_tree(seq, ())

    def _new_cells(self, seqs: Seqs, positions: Sequence[int]) -> list[int]:
        """Free cells for new tokens; evicts entries and drops trees if need be. Raises: `place`."""
        if self._trees:
            for seq in {s for group in seqs for s in seq_tuple(group)}:
                self.drop_tree(seq)
        self.check_room(seqs, positions)
        if self.window and not (self.unified and self.n_cells - self._n_used >= len(seqs)):
            self._make_room(len(seqs), self._starts(seqs, positions))
        return self._free_cells(seqs)

    def _starts(self, seqs: Seqs, positions: Sequence[int]) -> dict[int, int]:
        """The next position of each sequence, or the first of these tokens if it is lower."""
        starts = self._ends()
        for seq, position in zip(seqs, positions, strict=True):
            for s in seq_tuple(seq):
                starts[s] = min(starts[s], position)
        return starts

    def _free_cells(self, seqs: Seqs) -> list[int]:
        """Free cells for the tokens, consecutive ones if the next cells are free."""
        n, first = len(seqs), self._next
        if self.unified:
            if first + n <= self.n_cells and not any(self._n_ref_items[first : first + n]):
                return list(range(first, first + n))
            scattered: list[int] = np.flatnonzero(self._n_refs == 0)[:n].tolist()
            return scattered
        free: dict[int | tuple[int, ...], Iterator[int]] = {}
        for seq, n in Counter(seqs).items():
            part = self._stream(seq)
            first = part.start + sum(self._lengths[s] for s in seq_tuple(seq))
            if first + n <= part.stop and not any(self._n_ref_items[first : first + n]):
                free[seq] = iter(range(first, first + n))
            else:
                found = np.flatnonzero(self._n_refs[part] == 0)[:n] + part.start
                free[seq] = iter(found.tolist())
        return [next(free[seq]) for seq in seqs]

    def rows(self, seqs: Seqs, positions: Sequence[int], places: Sequence[int]) -> Ints:
        """The rows of ``flash_attn_cells`` with branches for tokens just placed, int32[n, 6].

        Sequence, first and end index in its list, and position of each token; no branch.
        """
        first = [seq if isinstance(seq, int) else seq[0] for seq in seqs]
        rows = np.zeros((len(seqs), 6), np.int32)
        rows[:, 0], rows[:, 3] = first, positions
        if self.window:
            starts = zip(first, positions, strict=True)
            rows[:, 1] = [self.index(s, self.window_start(position)) for s, position in starts]
        elif self.encoded:
            rows[:, 1] = [self.encoded.get(s, 0) for s in first]
        rows[:, 2] = [p + 1 for p in places]
        return rows

    def prepend(self, seq: int, positions: Ints) -> Ints:
        """Assign cells to evicted entries, which return to the beginning of a sequence's list.

        Raises:
            ContextFull: too few free cells; nothing has changed but evictions.
        """
        n, length, stream = len(positions), self._lengths[seq], self._stream(seq)
        if self.unified:
            self._make_room(n, self._ends())
        free = np.flatnonzero(self._n_refs[stream] == 0)[:n] + stream.start
        self._check_free(n, len(free), stream.stop - stream.start)
        cells: Ints = free.astype(np.int32)
        self._lists[seq, n : n + length] = self._lists[seq, :length].copy()
        self._lists[seq, :n, 0], self._lists[seq, :n, 1] = cells, positions
        self._lengths[seq], self._evicted[seq] = n + length, int(positions[0]) - 1
        self._note_change(seq, 0)
        self._add_refs(cells)
        return cells

    # -- operations on sequences -----------------------------------------------------------------

    def seq_rm(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        """Remove positions [p0, p1) (p1 -1: to the end) of a sequence (-1: of all).

        The tokens of an encoded text depend on each other: without one of them all are removed,
        and those after the text.
        """
        for s in range(self.n_seq_max) if seq < 0 else (seq,):
            self._check_seq(s)
            self.drop_tree(s)
            first, last = self._range(s, p0, p1)
            if first < min(last, self.encoded.get(s, 0)):
                first, last = 0, self._lengths[s]
                del self.encoded[s]
            self._remove(s, first, last)
            if not self._lengths[s]:
                self.reduced.pop(s, None)
            if self._evicted_in(s, p0, p1):
                self._evicted[s] = max(p0, 0) - 1  # removed positions do not count as evicted

    def seq_cp(self, source: int, target: int, p0: int = 0, p1: int = -1) -> None:
        """Add the cells of positions [p0, p1) of one sequence to another sequence.

        Keys and values are copied only if sequences do not share cells (``unified`` is False).

        Raises:
            BatchError: the target already reaches those positions, or an encoded text is cut;
                nothing has changed.
            ContextFull: the target has too few free cells; nothing has changed.
        """
        self._check_seq(source)
        self._check_seq(target)
        if source == target:
            return
        self.drop_tree(target)
        first, last = self._range(source, p0, p1)
        part = self._lists[source, first:last].copy()
        n = self._lengths[target]
        if n and len(part) and int(part[0, 1]) <= self.seq_pos_max(target):
            raise BatchError(
                f"sequence {target} already reaches position {self.seq_pos_max(target)}: "
                f"cannot add position {int(part[0, 1])} of sequence {source} after it"
            )
        n_encoded = self.encoded.get(source, 0)
        if n_encoded and len(part) and (n or first or last < n_encoded):
            raise BatchError(
                f"positions {first} to {last - 1} of sequence {source} cannot be added to the {n} "
                f"of sequence {target}: an encoded text is copied as a whole, to an empty one"
            )
        if not self.unified:
            part[:, 0] = self._copy_targets(target, part[:, 0])
        self._lists[target, n : n + len(part)] = part
        self._note_change(target, n)
        self._add_refs(part[:, 0])
        self._lengths[target] = n + len(part)
        if n_encoded and len(part):
            self.encoded[target] = n_encoded
        if source in self.reduced and len(part):
            self.reduced[target] = max(self.reduced.get(target, 0), self.reduced[source])
        if first == 0:
            self._evicted[target] = max(self._evicted[target], self._evicted[source])

    def cells_to_keep(self, seq: int, n: int) -> Ints | None:
        """Cells for a list of ``n`` entries that are no other sequence's, the list's own first.

        None if there are too few.
        """
        cells, stream = self.entries(seq)[:, 0], self._stream(seq)
        own = cells[self._n_refs[cells] == 1]
        free = np.flatnonzero(self._n_refs[stream] == 0) + stream.start
        found = np.concatenate([own, free])[:n].astype(np.int32)
        return found if len(found) == n else None

    def reduce(self, seq: int, cells: Ints, window: int) -> None:
        """Replace a sequence's list by a shorter one in ``cells``, whose contents must be written.

        The last ``window`` entries keep their positions. Those before them get the positions from
        0 on, since each head has other tokens there.

        Args:
            cells: from ``cells_to_keep``.
        """
        self.drop_tree(seq)
        old, n = self.entries(seq).copy(), len(cells)
        entries, first = self._lists[seq, :n], n - window
        entries[:, 0] = cells
        entries[:first, 1], entries[first:, 1] = range(first), old[-window:, 1]
        self._lengths[seq], self.reduced[seq] = n, int(old[-1, 1]) + 1
        self._note_change(seq, 0)
        self._add_refs(np.setdiff1d(cells, old[:, 0]))
        self._drop_refs(np.setdiff1d(old[:, 0], cells))

    def seq_keep(self, seq: int) -> None:
        """Remove every other sequence."""
        self._check_seq(seq)
        for other in range(self.n_seq_max):
            if other != seq:
                self.seq_rm(other)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Add ``delta`` to positions [p0, p1) (p1 -1: to the end); those below 0 are removed.

        Raises:
            BatchError: positions would pass others; nothing has changed.
            ContextFull: a cell is shared with another sequence, and none is free for a copy.
        """
        self._check_seq(seq)
        self.drop_tree(seq)
        first, last = self._range(seq, p0, p1)
        self._set_positions(seq, first, last, self._lists[seq, first:last, 1] + np.int32(delta))
        if self._evicted_in(seq, p0, p1):
            self._evicted[seq] = max(-1, self._evicted[seq] + delta)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Divide positions [p0, p1) (p1 -1: to the end) by ``d``, rounding down.

        Several cells may end up at one position. Raises: as `seq_add`.
        """
        self._check_seq(seq)
        if d < 1:
            raise BatchError(f"seq_div by {d}, want 1 or more")
        self.drop_tree(seq)
        first, last = self._range(seq, p0, p1)
        self._set_positions(seq, first, last, self._lists[seq, first:last, 1] // np.int32(d))
        if self._evicted_in(seq, p0, p1):
            self._evicted[seq] //= d

    def _evicted_in(self, seq: int, p0: int, p1: int) -> bool:
        """Whether the last evicted position is in [p0, p1)."""
        return p0 <= self._evicted[seq] and (p1 < 0 or self._evicted[seq] < p1)

    def _set_positions(self, seq: int, first: int, last: int, positions: Ints) -> None:
        """Set the positions of the entries [first, last); negative ones are removed."""
        n, old = self._lengths[seq], self._lists[seq]
        n_removed = int((positions < 0).sum())
        before, after = old[first - 1, 1] if first else -1, old[last, 1] if last < n else None
        kept = positions[n_removed:]
        if len(kept) and (kept[0] < before or (after is not None and kept[-1] > after)):
            raise BatchError(
                f"positions {int(old[first, 1])} to {int(old[last - 1, 1])} of sequence {seq} "
                f"cannot become {int(kept[0])} to {int(kept[-1])}: others are in the way"
            )
        part = old[first + n_removed : last].copy()
        shared = self._n_refs[part[:, 0]] > 1
        if shared.any():  # another sequence needs the old keys: rotate a copy
            copies = self._copy_targets(seq, part[shared, 0])
            self._n_refs[part[shared, 0]] -= 1
            part[shared, 0] = copies
            self._add_refs(copies)
        self.pending.shift[part[:, 0]] += kept - part[:, 1]
        self.pending.any = True
        part[:, 1] = kept
        old[first + n_removed : last] = part
        self._note_change(seq, first)
        if n_removed:
            self._remove(seq, first, first + n_removed)


def _paths(positions: Sequence[int], parents: Sequence[int]) -> list[list[int]]:
    """The paths from a root to each leaf, the longest first."""
    leaves = sorted({*range(len(parents))} - {*parents}, key=lambda i: -positions[i])
    paths = []
    for node in leaves:
        path = []
        while node >= 0:
            path.append(node)
            node = parents[node]
        paths.append(path[::-1])
    return paths
