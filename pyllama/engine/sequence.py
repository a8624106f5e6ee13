"""The tokens in one sequence of a context, and in which batches they are evaluated.

    sequence = Sequence(context, 0)
    n = sequence.keep(tokens)                      # what is there of them stays
    for row in chunks(sequence, tokens[n:], n_batch): decode([row])

Attributes and memory agree except within an `Engine`'s decode. Not thread-safe.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..core.batch import Batch
from ..errors import ContextFull
from .request import Floats, Ids

if TYPE_CHECKING:
    from ..core.context import Context

UNKNOWN = -1
"""In place of a token that was evaluated before there was an engine."""


class Sequence:
    """One sequence of a context.

    Args:
        context: nobody else may use this sequence of it.
        seq_id: which one; what it holds already counts as unknown tokens.

    Attributes:
        ids: int32[n_ctx_seq], of which the memory holds the first ``n_tokens``.
        n_exact: tokens that have the bits of a fresh evaluation: those before a context shift.
        n_forgotten: tokens that context shifts took out of the middle.
        owner: the key of the text whose tokens these are, None for another's or nobody's.
        leased: whether it is driven by hand.
        on_logits: called with the index of the first of some tokens and the logits of all of them.
        last_used: a number that grows with each use.
    """

    __slots__ = (
        "context", "ids", "last_used", "leased", "n_exact", "n_forgotten", "n_tokens",
        "on_logits", "owner", "seq_id",
    )  # fmt: skip

    def __init__(self, context: Context, seq_id: int) -> None:
        self.context, self.seq_id = context, seq_id
        self.ids: Ids = np.zeros(context.n_ctx_seq, np.intc)
        self.n_tokens = min(context.kv.seq_pos_max(seq_id) + 1, context.n_ctx_seq)
        self.ids[: self.n_tokens] = UNKNOWN
        self.n_exact = sys.maxsize
        self.n_forgotten = self.last_used = 0
        self.owner: object = None
        self.leased = False
        self.on_logits: Callable[[int, Floats], None] | None = None

    def tokens(self) -> Ids:
        """A copy of the tokens in memory."""
        return self.ids[: self.n_tokens].copy()

    def adopt(self, tokens: Seq[int] | Ids) -> None:
        """Take note that the memory holds these tokens."""
        self.n_tokens = len(tokens)
        self.ids[: self.n_tokens] = tokens
        self._check_exact()

    def append(self, tokens: Seq[int]) -> None:
        """Take note that the memory holds these tokens after the others."""
        first, self.n_tokens = self.n_tokens, self.n_tokens + len(tokens)
        self.ids[first : self.n_tokens] = tokens

    def truncate(self, n: int | None = None) -> None:
        """Forget all but the first ``n`` tokens, or those that do not count any more."""
        self.n_tokens = self.n_tokens if n is None else n
        self._check_exact()
        if self.context.kv.seq_pos_max(self.seq_id) + 1 != self.n_tokens:
            self.context.kv.seq_rm(self.seq_id, self.n_tokens, -1)

    def clear(self) -> None:
        """Forget everything."""
        self.n_forgotten = 0
        self.truncate(0)

    def n_shared(self, tokens: Seq[int] | Ids) -> int:
        """With how many of these tokens it begins, all but the last one at most."""
        return n_common(self.ids[: min(self.n_tokens, len(tokens) - 1)], tokens)

    def keep(self, tokens: Seq[int]) -> int:
        """Forget what is not the beginning of ``tokens``, or is all of it; how many tokens stay."""
        n = self.n_shared(tokens)
        # a sliding window may not have kept enough to go back there
        self.n_tokens = self.context.kv.rewind(self.seq_id, n)
        self._check_exact()
        return self.n_tokens

    def fork(self, source: Sequence, n: int) -> None:
        """Hold the first ``n`` tokens of another sequence, and nothing else. Copies no keys.

        Raises:
            ContextFull: each sequence has cells of its own, and these do not suffice.
        """
        self.clear()
        self.context.kv.seq_cp(source.seq_id, self.seq_id, 0, n)
        self.adopt(source.ids[:n])
        self.n_exact = sys.maxsize if n <= source.n_exact else source.n_exact

    def make_room(self, tokens: list[int], n_keep: int, n_last: int = 0) -> int:
        """Take some of ``tokens`` out of the middle, so that the context can hold them (shift).

        Half of what is in memory of them after the first ``n_keep`` goes, and the rest moves up
        with its keys rotated; where no more than these are in memory, half of all. The ``n_last``
        last ones stay.

        Returns:
            How many are taken out, at ``n_keep``.

        Raises:
            ContextFull: there is nothing that may go.
        """
        n_ctx, kv = self.context.n_ctx_seq, self.context.kv
        held = min(self.keep(tokens), len(tokens) - n_last)
        self.truncate(held)
        n = (held - n_keep) // 2
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
        outputs: ``"last"``, ``"all"``, ``"none"``, or a flag for each token: whose logits are
            wanted. Drafted tokens will want all.
    """

    sequence: Sequence
    tokens: list[int]
    outputs: str | Seq[bool] = "last"

    @property
    def n_outputs(self) -> int:
        """How many logits it has."""
        if not isinstance(self.outputs, str):
            return sum(map(bool, self.outputs))
        return len(self.tokens) if self.outputs == "all" else int(self.outputs == "last")

    @property
    def wants_last(self) -> bool:
        """Whether the logits after its last token are wanted."""
        if isinstance(self.outputs, str):
            return self.outputs != "none"
        return bool(self.outputs[-1])

    def flags(self) -> list[bool]:
        """For each token, whether its logits are wanted."""
        if not isinstance(self.outputs, str):
            return list(self.outputs)
        n = len(self.tokens)
        flags = [self.outputs == "all"] * n
        if n and self.outputs == "last":
            flags[-1] = True
        return flags


def batch_of(rows: Seq[Row]) -> Batch:
    """The tokens of some sequences as one batch."""
    if len(rows) == 1:
        row = rows[0]
        return Batch(row.tokens, seq_id=row.sequence.seq_id, logits=row.outputs)
    tokens: list[int] = []
    seqs: list[int] = []
    flags: list[bool] = []
    for row in rows:
        tokens += row.tokens
        seqs += [row.sequence.seq_id] * len(row.tokens)
        flags += row.flags()
    return Batch(tokens, seq_id=seqs, logits=flags)


def batches(rows: Seq[Row], n_batch: int) -> Iterator[list[Row]]:
    """All tokens of some sequences, ``n_batch`` at a time, sequence after sequence."""
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
    """How many tokens two texts begin with alike."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.asarray(a[:n], np.int64) != np.asarray(b[:n], np.int64))
    return int(differ[0]) if differ.size else n
