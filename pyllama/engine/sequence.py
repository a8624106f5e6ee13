"""The tokens in one sequence of a context, and the batches that evaluate them.

    sequence = Sequence(context, 0)
    n = sequence.keep(tokens)                      # length of the common prefix
    for rows in batches([Row(sequence, tokens[n:])], n_batch): decode(rows)

Attributes and the KV cache agree except within an `Engine`'s decode. Not thread-safe.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ContextFull
from ..runtime.batch import Batch
from .request import Floats, Ids

if TYPE_CHECKING:
    from ..runtime.context import Context

UNKNOWN = -1
"""Stands for a token that was evaluated before the engine existed."""


class Sequence:
    """One sequence of a context.

    Args:
        context: the context; nothing else may use this sequence.
        seq_id: id of the sequence; tokens that it already holds are `UNKNOWN`.

    Attributes:
        ids: int32[n_ctx_seq], of which the cache holds the first ``n_tokens``.
        id_items: the same memory; cheaper for a single token.
        n_exact: leading tokens with the bits of a fresh evaluation: those before a context shift.
        n_forgotten: tokens removed by context shifts.
        owner: key of the job whose tokens it holds, or None.
        leased: whether a `Lease` holds it.
        on_logits: called with the index of the first token of a chunk, and the chunk's logits.
        last_used: number of the last step that used it.
    """

    __slots__ = (
        "context", "id_items", "ids", "last_used", "leased", "n_exact", "n_forgotten", "n_tokens",
        "on_logits", "owner", "seq_id",
    )  # fmt: skip

    def __init__(self, context: Context, seq_id: int) -> None:
        self.context, self.seq_id = context, seq_id
        self.ids: Ids = np.zeros(context.n_ctx_seq, np.intc)
        self.id_items = self.ids.data
        self.n_tokens = min(context.kv.seq_pos_max(seq_id) + 1, context.n_ctx_seq)
        self.ids[: self.n_tokens] = UNKNOWN
        self.n_exact = sys.maxsize
        self.n_forgotten = self.last_used = 0
        self.owner: object = None
        self.leased = False
        self.on_logits: Callable[[int, Floats], None] | None = None

    def tokens(self) -> Ids:
        """A copy of the tokens in the cache."""
        return self.ids[: self.n_tokens].copy()

    def adopt(self, tokens: Seq[int] | Ids) -> None:
        """Declare that the cache holds these tokens."""
        self.n_tokens = len(tokens)
        self.ids[: self.n_tokens] = tokens
        self._check_exact()

    def append(self, tokens: Seq[int]) -> None:
        """Declare that the cache holds these tokens after the others."""
        first, self.n_tokens = self.n_tokens, self.n_tokens + len(tokens)
        self.ids[first : self.n_tokens] = tokens

    def truncate(self, n: int | None = None) -> None:
        """Remove all but the first ``n`` tokens (None: ``n_tokens``) from the cache."""
        self.n_tokens = self.n_tokens if n is None else n
        self._check_exact()
        if self.context.kv.seq_pos_max(self.seq_id) + 1 != self.n_tokens:
            self.context.kv.seq_rm(self.seq_id, self.n_tokens, -1)

    def clear(self) -> None:
        """Remove all tokens."""
        self.n_forgotten = 0
        self.truncate(0)

    def n_shared(self, tokens: Seq[int] | Ids) -> int:
        """Length of the common prefix with ``tokens``, without their last one."""
        return n_common(self.ids[: min(self.n_tokens, len(tokens) - 1)], tokens)

    def keep(self, tokens: Seq[int]) -> int:
        """Remove all but the common prefix with ``tokens``; returns its length.

        The last of ``tokens`` is never kept, so that evaluating it gives logits.
        """
        n = self.n_shared(tokens)
        # 0 if a sliding window has evicted entries that the next token needs
        self.n_tokens = self.context.kv.rewind(self.seq_id, n)
        self._check_exact()
        return self.n_tokens

    def fork(self, source: Sequence, n: int) -> None:
        """Replace the tokens by the first ``n`` of another sequence, sharing its cells.

        Raises:
            ContextFull: sequences do not share cells, and this one has too few.
        """
        self.clear()
        self.context.kv.seq_cp(source.seq_id, self.seq_id, 0, n)
        self.adopt(source.ids[:n])
        self.n_exact = sys.maxsize if n <= source.n_exact else source.n_exact

    def make_room(self, tokens: list[int], n_keep: int, n_last: int = 0, n_discard: int = 0) -> int:
        """Remove some of ``tokens`` after the first ``n_keep`` (context shift).

        Removes ``n_discard`` or half of the cached tokens after ``n_keep``, and rotates the keys of
        the rest to their new positions. If none are cached there, removes half of all. The last
        ``n_last`` tokens stay.

        Returns:
            The number of tokens removed, at index ``n_keep``.

        Raises:
            ContextFull: no token may be removed.
        """
        n_ctx, kv = self.context.n_ctx_seq, self.context.kv
        held = min(self.keep(tokens), len(tokens) - n_last)
        self.truncate(held)
        n = min(n_discard, held - n_keep - 1) if n_discard else (held - n_keep) // 2
        if n >= 1:
            kv.seq_rm(self.seq_id, n_keep, n_keep + n)
            try:
                kv.seq_add(self.seq_id, n_keep + n, -1, -n)
                self.ids[n_keep : held - n] = self.ids[n_keep + n : held].copy()
                self.n_tokens = held - n
                self.n_exact = min(self.n_exact, n_keep)
            except ContextFull:  # other sequences need the keys, and no cells are free for copies
                self.truncate(n_keep)
        else:
            n = (len(tokens) - n_last - n_keep + 1) // 2
        if n < 1 or n_keep > n_ctx - 2:
            raise ContextFull(
                f"all {n_keep} tokens to keep fill the context of {n_ctx}; "
                "use a smaller `n_keep` or a larger `n_ctx`"
            )
        del tokens[n_keep : n_keep + n]
        self.n_forgotten += n
        return n

    def _check_exact(self) -> None:
        if self.n_tokens <= self.n_exact:
            self.n_exact = sys.maxsize


@dataclass(slots=True)
class Row:
    """Tokens of one sequence in a batch.

    Attributes:
        outputs: tokens to compute logits for: ``"last"``, ``"all"``, ``"none"``, or a flag for
            each.
        embedded: tokens to compute embeddings for, in the same way.
    """

    sequence: Sequence
    tokens: list[int]
    outputs: str | Seq[bool] = "last"
    embedded: str | Seq[bool] = "none"

    @property
    def n_outputs(self) -> int:
        """Number of tokens with logits."""
        return self._n_of(self.outputs)

    @property
    def n_embedded(self) -> int:
        """Number of tokens with embeddings."""
        return self._n_of(self.embedded)

    def _n_of(self, flags: str | Seq[bool]) -> int:
        if not isinstance(flags, str):
            return sum(map(bool, flags))
        return len(self.tokens) if flags == "all" else int(flags == "last")

    @property
    def wants_last(self) -> bool:
        """Whether logits are computed for the last token."""
        if isinstance(self.outputs, str):
            return self.outputs != "none"
        return bool(self.outputs[-1])

    def flags(self) -> list[bool]:
        """For each token, whether its logits are computed."""
        return self._flags(self.outputs)

    def embedded_flags(self) -> list[bool]:
        """For each token, whether its embedding is computed."""
        return self._flags(self.embedded)

    def _flags(self, given: str | Seq[bool]) -> list[bool]:
        if not isinstance(given, str):
            return list(given)
        n = len(self.tokens)
        flags = [given == "all"] * n
        if n and given == "last":
            flags[-1] = True
        return flags


def batch_of(rows: Seq[Row]) -> Batch:
    """The batch of some rows."""
    if len(rows) == 1:
        row = rows[0]
        return Batch(
            row.tokens, seq_id=row.sequence.seq_id, logits=row.outputs, embeddings=row.embedded
        )
    tokens: list[int] = []
    seqs: list[int] = []
    outputs: list[bool] = []
    embedded: list[bool] = []
    for row in rows:
        tokens += row.tokens
        seqs += [row.sequence.seq_id] * len(row.tokens)
        outputs += row.flags()
        embedded += row.embedded_flags()
    return Batch(
        tokens, seq_id=seqs, logits=outputs, embeddings=embedded if any(embedded) else "none"
    )


def batches(rows: Seq[Row], n_batch: int) -> Iterator[list[Row]]:
    """Split rows into batches of at most ``n_batch`` tokens, in order."""
    part: list[Row] = []
    room = n_batch
    for row in rows:
        n, start = len(row.tokens), 0
        while start < n:
            stop = min(n, start + room)
            part.append(_part(row, start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield part
                part, room = [], n_batch
    if part:
        yield part


def _part(row: Row, start: int, stop: int) -> Row:
    outputs = row.outputs
    if not isinstance(outputs, str):
        outputs = outputs[start:stop]
    elif outputs == "last" and stop < len(row.tokens):
        outputs = "none"
    return Row(row.sequence, row.tokens[start:stop], outputs)


def n_common(a: Seq[int] | Ids, b: Seq[int] | Ids) -> int:
    """Length of the common prefix of two token lists."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.asarray(a[:n], np.int64) != np.asarray(b[:n], np.int64))
    return int(differ[0]) if differ.size else n
