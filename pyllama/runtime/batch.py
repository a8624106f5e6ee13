"""A batch: tokens to decode, with their positions, their sequences and which results to compute.

    Batch([1, 15043, 3186])                        # continue sequence 0, logits of the last token
    Batch(tokens, logits="all")
    Batch(tokens, logits="none", embeddings="all")
    Batch([5, 6, 7], parent=[-1, 0, 0], logits="all")          # a tree: 6 and 7 both follow 5
    Batch([5, 6, 7], pos=[9, 10, 10], seq_id=[[0, 1], 0, 1])   # the same in two sequences

Values may be lists or NumPy arrays. ``Context.decode`` validates them.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BatchError

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Batch:
    """One batch, as ``llama_batch``.

    Args:
        tokens: token ids.
        pos: position of each token; None continues each sequence after its last position.
        seq_id: one sequence for all tokens, or for each token a sequence or a list of sequences.
        logits: tokens to compute logits for: ``"last"``, ``"all"``, ``"none"``, or a flag for each.
        embeddings: tokens to compute embeddings for, in the same way.
        parent: for each token the index of the token that it follows, or -1 if it follows the last
            cached token of its sequence. So each sequence has a tree, of which it gets a path by
            ``kv.commit_tree``. Positions follow from the depths.
        checkpoints: of models with recurrent layers, indices of tokens after which the state is
            kept, so that the sequence can go back to there.
        drafted: the same, until the sequence goes on.
        adapters: factors of the context's adapters (``Context.scales``), for all tokens or a row
            for each; None: the context's own (``Context.applied``).
        hidden: of a head that drafts, for each token the target's hidden states before it,
            float32[n, n_embd_target]; None for 0.

    Raises:
        BatchError: the lengths differ, ``logits`` or ``embeddings`` is another string, or ``pos``
            and ``parent`` are both given.
    """

    tokens: Sequence[int]
    pos: Sequence[int] | None = None
    seq_id: int | Sequence[int | Sequence[int]] = 0
    logits: str | Sequence[bool] = "last"
    parent: Sequence[int] | None = None
    embeddings: str | Sequence[bool] = "none"
    checkpoints: Sequence[int] = ()
    drafted: Sequence[int] = ()
    adapters: Floats | None = None
    hidden: Floats | None = None

    def __post_init__(self) -> None:
        given = self.pos is not None or self.parent is not None
        plain = self._only_last() and not self.has_embeddings
        if not given and plain and type(self.seq_id) is int:
            return  # one token of one sequence, the common case: no lengths to compare
        if self.pos is not None and self.parent is not None:
            raise BatchError("batch: pos and parent are given, but positions follow from parents")
        n = len(self.tokens)
        for name in ("pos", "seq_id", "logits", "parent", "embeddings", "hidden"):
            values = getattr(self, name)
            if isinstance(values, str) or not isinstance(values, Sized):
                continue
            if len(values) != n:
                raise BatchError(f"batch: {n} tokens but {len(values)} values of {name}")
        for name in ("logits", "embeddings"):
            value = getattr(self, name)
            if isinstance(value, str) and value not in ("last", "all", "none"):
                raise BatchError(f"batch: {name} is {value!r}, want 'last', 'all', 'none' or flags")

    @property
    def has_embeddings(self) -> bool:
        """Whether embeddings may be computed."""
        return not isinstance(self.embeddings, str) or self.embeddings != "none"

    def _only_last(self) -> bool:
        return isinstance(self.logits, str) and self.logits == "last"  # an array has no bool()

    def seqs(self) -> list[int | tuple[int, ...]]:
        """The sequence of each token; a tuple for several, of which it attends to the first.

        Raises:
            BatchError: a token has no sequence, or one of them twice.
        """
        if isinstance(self.seq_id, Sized):
            return [_sequences(s) for s in self.seq_id]
        return [int(self.seq_id)] * len(self.tokens)

    def outputs(self) -> list[int]:
        """Indices of the tokens to compute logits for."""
        if len(self.tokens) == 1 and self._only_last():
            return [0]
        return self._indices(self.logits)

    def embedded(self) -> list[int]:
        """Indices of the tokens to compute embeddings for."""
        return self._indices(self.embeddings) if self.has_embeddings else []

    def _indices(self, given: str | Sequence[bool]) -> list[int]:
        n = len(self.tokens)
        if isinstance(given, str):
            return list(range({"all": 0, "last": max(0, n - 1), "none": n}[given], n))
        return [i for i, flag in enumerate(given) if flag]

    def scales(self, n_adapters: int, applied: Floats | None) -> Floats | None:
        """A row of factors for each token; None if all are 0. Raises: BatchError."""
        given, n = applied if self.adapters is None else self.adapters, len(self.tokens)
        if given is None or not np.count_nonzero(given):
            return None
        if given.shape not in ((n_adapters,), (n, n_adapters)):
            raise BatchError(
                f"batch: adapters have the shape {given.shape}, want [{n_adapters}] or "
                f"[{n}, {n_adapters}]: a factor for each adapter of the context"
            )
        if not np.isfinite(given).all():
            raise BatchError("batch: a factor of an adapter is NaN or infinite")
        # `broadcast_to` is Python, which is slow between tokens: weights evict it from the caches
        return given if given.ndim == 2 else given[None].repeat(n, 0)


def _sequences(seq: int | Sequence[int]) -> int | tuple[int, ...]:
    if type(seq) is int or not isinstance(seq, Sized):
        return int(seq)
    seqs = tuple(int(s) for s in seq)
    if not seqs or len(set(seqs)) < len(seqs):
        raise BatchError(
            f"batch: a token has sequences {list(seqs)}, want at least one and no duplicates"
        )
    return seqs if len(seqs) > 1 else seqs[0]
