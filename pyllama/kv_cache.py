"""The KV cache: cells of keys and values, and for each sequence the list of its cells by position.

    kv = KVCache(hparams, n_cells=1024, n_seq_max=1)
    cells = kv.place([0, 0, 0], [5, 6, 7])         # cells for three tokens of sequence 0
    kv.seq_rm(0, 6, -1)                            # forget positions from 6 on

A cell holds one token's keys and values and may belong to several sequences. Attention walks a
sequence's list (``cells``), so a token's result does not depend on which cells it got. Memory is
committed by the system when a cell is first written. Not thread-safe.
Source: llama.cpp, ``llama_kv_cache_unified`` (names of the operations).
"""

from __future__ import annotations

import numpy as np

from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.cpu.osapi import available_memory
from pyggml.buffer import HOST
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError

from .errors import BatchError, ContextFull
from .hparams import HParams


class KVCache:
    """Keys and values of all layers.

    Args:
        type: of keys and values, F16 or F32.

    Attributes:
        k, v: one a layer, F16 [head_dim, n_cells, n_head_kv]: what a head reads lies together.
        cells: I32 [2, n_cells, n_seq_max], each sequence's (cell, position) ordered by position.

    Raises:
        AllocError: the cache does not fit into this machine's memory.
    """

    def __init__(
        self,
        hparams: HParams,
        n_cells: int,
        n_seq_max: int = 1,
        type: GGMLType = GGMLType.F16,
    ) -> None:
        self.n_cells, self.n_seq_max = n_cells, n_seq_max
        self.size_bytes = 2 * type.type_size * hparams.n_layer * hparams.n_embd_kv * n_cells
        _check_memory(self.size_bytes + 8 * n_cells * n_seq_max, n_cells, n_seq_max)
        self._ctx = Context(no_alloc=True)
        shape = (hparams.head_dim, n_cells, hparams.n_head_kv)
        layers = range(hparams.n_layer)
        self.k, self.v = (
            [self._ctx.new_tensor(type, shape).set_name(f"cache_{x}_l{i}") for i in layers]
            for x in "kv"
        )
        self.cells = self._ctx.new_tensor_3d(GGMLType.I32, 2, n_cells, n_seq_max)
        self.cells.set_name("cache_cells")
        self._buffer = alloc_ctx_tensors(self._ctx, HOST)
        self._lists = self.cells.numpy(squeeze=False)[0]  # [n_seq, n_cells, 2]
        self._lengths = [0] * n_seq_max
        self._owners = np.zeros(n_cells, np.int32)  # sequences that a cell belongs to
        self._n_used = 0
        self._next = 0  # cells below are probably taken

    @property
    def n_used(self) -> int:
        """Cells that belong to a sequence."""
        return self._n_used

    def length(self, seq: int) -> int:
        """Cells of a sequence."""
        self._check_seq(seq)
        return self._lengths[seq]

    def seq_pos_max(self, seq: int) -> int:
        """The last position of a sequence, -1 where it is empty."""
        self._check_seq(seq)
        n = self._lengths[seq]
        return int(self._lists[seq, n - 1, 1]) if n else -1

    def seq_pos_min(self, seq: int) -> int:
        """The first position of a sequence, -1 where it is empty."""
        self._check_seq(seq)
        return int(self._lists[seq, 0, 1]) if self._lengths[seq] else -1

    def place(self, seqs: list[int], positions: list[int]) -> tuple[list[int], list[int]]:
        """Cells for new tokens, which are appended to their sequences' lists.

        Args:
            seqs: the sequence of each token; positions: rising within a sequence.

        Returns:
            The cell of each token, and its place in its sequence's list.

        Raises:
            ContextFull: too few free cells; nothing has changed.
        """
        n = len(seqs)
        if n > self.n_cells - self._n_used:
            raise ContextFull(
                f"the context is full: {n} tokens wanted, {self.n_cells - self._n_used} of "
                f"{self.n_cells} cells free; use a larger context (-c, n_ctx) or a shorter prompt"
            )
        if n == 1 and self._next < self.n_cells and not self._owners[self._next]:
            return self._place_one(seqs[0], positions[0])
        cells = self._free_cells(n)
        lengths, places = self._lengths.copy(), []
        for seq, cell, position in zip(seqs, cells, positions, strict=True):
            place = lengths[seq]
            self._lists[seq, place] = cell, position
            lengths[seq] = place + 1
            places.append(place)
        # Only now does anything change: an interrupt above leaves no half-placed batch.
        self._owners[cells] = 1
        self._n_used += n
        self._lengths = lengths
        self._next = cells[-1] + 1 if n else self._next
        return cells, places

    def _place_one(self, seq: int, position: int) -> tuple[list[int], list[int]]:
        """``place`` of a token that continues in the next cell: the step between two tokens."""
        cell, place = self._next, self._lengths[seq]
        self._lists[seq, place] = cell, position
        self._owners[cell] = 1
        self._n_used += 1
        self._lengths[seq] = place + 1
        self._next = cell + 1
        return [cell], [place]

    def _free_cells(self, n: int) -> list[int]:
        """Free cells, in one run where that is easy."""
        first = self._next
        window = self._owners[first : first + n]
        if len(window) == n and not window.any():
            return list(range(first, first + n))
        free: list[int] = np.flatnonzero(self._owners == 0)[:n].tolist()
        return free

    def index(self, seq: int, position: int) -> int:
        """How many cells of a sequence lie before a position."""
        n = self._lengths[seq]
        return int(np.searchsorted(self._lists[seq, :n, 1], position))

    def clear(self) -> None:
        """Forget everything."""
        self._lengths = [0] * self.n_seq_max
        self._owners[:] = 0
        self._n_used = self._next = 0

    def seq_rm(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        """Forget positions p0 up to, not with, p1 (-1: the end) of a sequence (-1: of all)."""
        for s in range(self.n_seq_max) if seq < 0 else (seq,):
            self._check_seq(s)
            n = self._lengths[s]
            first = self.index(s, max(p0, 0))
            last = n if p1 < 0 else max(first, self.index(s, p1))
            cells = self._lists[s, first:last, 0].copy()
            self._lists[s, first : n - (last - first)] = self._lists[s, last:n].copy()
            self._lengths[s] = n - (last - first)
            self._owners[cells] -= 1
            freed = cells[self._owners[cells] == 0]
            self._n_used -= len(freed)
            if len(freed):
                self._next = min(self._next, int(freed.min()))

    def seq_cp(self, source: int, target: int, p0: int = 0, p1: int = -1) -> None:
        """Let positions of one sequence belong to another too; no keys or values are copied."""
        self._check_seq(source)
        self._check_seq(target)
        if source == target:
            return
        first = self.index(source, max(p0, 0))
        last = self._lengths[source] if p1 < 0 else max(first, self.index(source, p1))
        part = self._lists[source, first:last]
        n = self._lengths[target]
        if n and len(part) and int(part[0, 1]) <= self.seq_pos_max(target):
            raise BatchError(
                f"sequence {target} already reaches position {self.seq_pos_max(target)}: "
                f"cannot take position {int(part[0, 1])} of sequence {source} behind it"
            )
        self._lists[target, n : n + len(part)] = part
        self._owners[part[:, 0]] += 1
        self._lengths[target] = n + len(part)

    def seq_keep(self, seq: int) -> None:
        """Forget every other sequence."""
        self._check_seq(seq)
        for other in range(self.n_seq_max):
            if other != seq:
                self.seq_rm(other)

    def _check_seq(self, seq: int) -> None:
        if not 0 <= seq < self.n_seq_max:
            raise BatchError(f"sequence {seq}: this context has 0 to {self.n_seq_max - 1}")


def _check_memory(size: int, n_cells: int, n_seq_max: int) -> None:
    have = available_memory()
    if have is not None and size > have:
        raise AllocError(
            f"a context of {n_cells} tokens and {n_seq_max} sequences needs {size} bytes "
            f"({size / 2**30:.2f} GiB) of KV cache, this machine has {have / 2**30:.2f} GiB free; "
            f"choose a smaller one with -c (n_ctx)"
        )
