"""Compressed rows: keys and values that each stand for ``ratio`` tokens of a sequence.

    rows = CompressedRows(hparams, tokens, ratio=4, n_cells=256, layers=(1, 3))
    cells, places = rows.place([0, 0], [6, 7])     # [-1, 0]: a row ends with position 7
    lists, of_tokens = rows.lists(of_window, of_rows)

A row belongs to the positions from a multiple of ``ratio`` on. It has the position of its last
token, at which it is computed, so operations on sequences are those of a cache: it is removed with
its last token. Its cell is before those of the tokens in the same tensors, and a token attends to a
list of its own:

    [no entries | tokens in its window | rows that end before or with it]
                                       n_window

An indexer's choice of rows takes the place of these where the cache has ``indexer_keys``.
Source: DeepSeek-AI 2026, "DeepSeek-V4"; llama.cpp, ``llama_kv_cache_dsv4``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pyggml.buffer import HOST
from pyggml.dtype import GGMLType
from pyggml.tensor import BufferType

from ..hparams import HParams
from .cache import KVCache
from .table import Ints, Seqs


class CompressedRows(KVCache):
    """The compressed rows of some layers.

    Args:
        tokens: the cache of the same layers' tokens, which has ``n_cells`` rows before its cells.
        ratio: tokens of a row.
        n_cells, layers, and the others: see ``KVCache``.

    Attributes:
        n_window: entries of a list before the rows.
        n_listed: the most entries of a list, without rows that are chosen.
    """

    def __init__(
        self,
        hparams: HParams,
        tokens: KVCache,
        ratio: int,
        n_cells: int,
        n_seq_max: int = 1,
        type_k: GGMLType = GGMLType.F16,
        type_v: GGMLType = GGMLType.F16,
        *,
        layers: Sequence[int],
        unified: bool = True,
        layer_buft: Callable[[int], BufferType] = lambda layer: HOST,
    ) -> None:
        super().__init__(
            hparams, n_cells, n_seq_max, type_k, type_v, layers=layers, unified=unified,
            n_ubatch=0, layer_buft=layer_buft, of_tokens=tokens,
        )  # fmt: skip
        self.ratio, self._tokens, self.n_window = ratio, tokens, tokens.window
        self._n_chosen = hparams.n_sparse_keys if self.indexer_keys else 0
        self.n_listed = self.n_window + (0 if self._n_chosen else n_cells)

    def check_room(self, seqs: Seqs, positions: Sequence[int]) -> None:
        """Raise the error that ``place`` would raise. Raises: as ``CellLists.check_room``."""
        super().check_room(*self._ending(seqs, positions)[1:])

    def place(self, seqs: Seqs, positions: Sequence[int]) -> tuple[list[int], list[int]]:
        """Assign cells to the rows that end with one of these tokens.

        Returns:
            The cell of each token's row, -1 where none ends, and the index of the last row that
            the token attends to in the list of its (first) sequence, -1 for none.

        Raises:
            ContextFull, BatchError: as ``check_room``; nothing has changed.
        """
        ends, ending_seqs, ending_positions = self._ending(seqs, positions)
        cells = [-1] * len(seqs)
        placed, _ = super().place(ending_seqs, ending_positions)
        for i, cell in zip(ends, placed, strict=True):
            cells[i] = cell
        first = [seq if isinstance(seq, int) else seq[0] for seq in seqs]
        seen = [self.index(s, p + 1) - 1 for s, p in zip(first, positions, strict=True)]
        return cells, seen

    def _ending(
        self, seqs: Seqs, positions: Sequence[int]
    ) -> tuple[list[int], Seqs, Sequence[int]]:
        """The tokens with which a row ends: their indices, sequences and positions."""
        ends = [i for i, position in enumerate(positions) if (position + 1) % self.ratio == 0]
        return ends, [seqs[i] for i in ends], [positions[i] for i in ends]

    def lists(self, of_tokens: Ints, of_rows: Ints) -> tuple[Ints, Ints]:
        """The list (cell, position) that each token attends to.

        Args:
            of_tokens, of_rows: the tokens' rows of ``flash_attn_cells`` in both caches.

        Returns:
            The lists int32[T, n, 2], and rows of ``flash_attn_cells`` without branches int32[T, 4].
        """
        n_tokens, n_rows = of_tokens[:, 2] - of_tokens[:, 1], of_rows[:, 2]
        n = self.n_window
        rows = np.zeros((len(of_rows), 4), np.int32)
        rows[:, 0], rows[:, 1], rows[:, 3] = range(len(rows)), n - n_tokens, of_tokens[:, 3]
        rows[:, 2] = n + (np.minimum(n_rows, self._n_chosen) if self._n_chosen else n_rows)
        longest = 0 if self._n_chosen else n_rows.max(initial=0)
        lists = np.zeros((len(rows), n + longest, 2), np.int32)
        for one, (seq, begin, end, *_), n_seen in zip(lists, of_tokens, n_rows, strict=True):
            one[n - (end - begin) : n] = self._tokens.entries(seq)[begin:end]
            one[n - (end - begin) : n, 0] += self.n_cells
            if not self._n_chosen:
                one[n : n + n_seen] = self._lists[seq, :n_seen]
        return lists, rows
