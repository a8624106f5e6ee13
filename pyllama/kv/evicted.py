"""Entries that a sliding window has evicted, kept so that a sequence can go back to a checkpoint.

    kept = EvictedEntries(n_seq_max=4, n_max=32, window_start=lambda p: p - 127)
    kept.mark(0, 300)                              # sequence 0 may go back to position 300
    if kept.needs(0, positions):                   # before these entries leave the cache
        kept.add(0, EvictedChunk(positions, rows))
    kept.newest(0, 310, evicted=511)               # 300

A token needs the keys and values in its window, so a sequence can only go back as far as the cache
has entries, unless those that leave it are kept: here, in host memory, and only if they lie in the
window of a checkpoint. Nothing is copied before it is evicted, and windows that overlap share their
entries. Entries leave in whole chunks, at which attention cuts lists, and return in these, so the
bits do not change.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyggml.host import available_memory

from .table import Ints

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class EvictedChunk:
    """Consecutive entries of a sequence.

    Attributes:
        positions: of the entries, ascending.
        rows: of each tensor of the cache uint8[n_head_kv, n, bytes].
    """

    positions: Ints
    rows: list[Bytes]

    @property
    def n_bytes(self) -> int:
        """Bytes of keys and values."""
        return sum(one.nbytes for one in self.rows)

    def before(self, position: int) -> EvictedChunk:
        """The entries before a position."""
        n = int(np.searchsorted(self.positions, position))
        return EvictedChunk(self.positions[:n], [one[:, :n] for one in self.rows])


class EvictedEntries:
    """The checkpoints of each sequence, and the evicted entries in their windows.

    Args:
        n_max: the most checkpoints of a sequence. Beyond it, and where the entries would take a
            quarter of the free memory, the first ones are dropped.
        window_start: the first position in the window of a token.
    """

    def __init__(self, n_seq_max: int, n_max: int, window_start: Callable[[int], int]) -> None:
        self._n_max, self._window_start = n_max, window_start
        self._checkpoints: list[list[int]] = [[] for _ in range(n_seq_max)]  # ascending
        self._chunks: list[list[EvictedChunk]] = [[] for _ in range(n_seq_max)]  # by position

    def mark(self, seq: int, position: int) -> None:
        """Make a position a checkpoint; no entry in its window has been evicted yet."""
        checkpoints = self._checkpoints[seq]
        if self._n_max and position not in checkpoints:
            insort(checkpoints, position)
            del checkpoints[: -self._n_max]

    def needs(self, seq: int, positions: Ints) -> bool:
        """Whether some of these ascending positions are in the window of a checkpoint."""
        first, last = int(positions[0]), int(positions[-1])
        return any(
            first < checkpoint and last >= self._window_start(checkpoint)
            for checkpoint in self._checkpoints[seq]
        )

    def add(self, seq: int, chunk: EvictedChunk) -> None:
        """Keep entries that are evicted."""
        chunks, checkpoints, have = self._chunks[seq], self._checkpoints[seq], available_memory()
        chunks.append(chunk)
        n_bytes = sum(one.n_bytes for of_seq in self._chunks for one in of_seq)
        while have is not None and checkpoints and 3 * n_bytes > have:
            del checkpoints[0]
            kept = [one for one in chunks if self.needs(seq, one.positions)]
            n_bytes -= sum(one.n_bytes for one in chunks) - sum(one.n_bytes for one in kept)
            chunks[:] = kept

    def newest(self, seq: int, position: int, evicted: int) -> int:
        """The newest checkpoint up to a position whose evicted entries are all here; 0 for none.

        Args:
            evicted: the last evicted position of the sequence.
        """
        for checkpoint in reversed(self._checkpoints[seq]):
            first, end = max(self._window_start(checkpoint), 0), min(checkpoint, evicted + 1)
            n = sum(int(((one.positions >= first) & (one.positions < end)).sum())
                    for one in self._chunks[seq])  # fmt: skip
            if checkpoint <= position and n == end - first:
                return checkpoint
        return 0

    def take(self, seq: int, checkpoint: int) -> list[EvictedChunk]:
        """Remove and return the chunks in the window of a checkpoint, without what follows it."""
        first = self._window_start(checkpoint)
        found = [one for one in self._chunks[seq] if one.positions[-1] >= first]
        self._chunks[seq] = [one for one in self._chunks[seq] if one.positions[-1] < first]
        return [part for one in found if (part := one.before(checkpoint)).positions.size]

    def truncate(self, seq: int, position: int) -> None:
        """Forget a sequence from a position on."""
        self._checkpoints[seq] = [one for one in self._checkpoints[seq] if one <= position]
        parts = [one.before(position) for one in self._chunks[seq]]
        self._chunks[seq] = [one for one in parts if one.positions.size]

    def copy(self, source: int, target: int, position: int) -> None:
        """Let a sequence begin as another one does up to a position."""
        self._checkpoints[target] = self._checkpoints[source].copy()
        self._chunks[target] = self._chunks[source].copy()
        self.truncate(target, position)
