"""Rows of a batch: the tokens that one step computes of each sequence.

    row = Row(sequence, tokens[sequence.n_tokens :])
    for part in batches([row], n_batch): context.decode(batch_of(part))

A row has the next tokens of a text, or the last one and the nodes of a draft that follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..runtime.batch import Batch
from ..speculative import Draft
from .jobs import TextRun
from .sequence import CacheSequence


@dataclass(slots=True)
class Row:
    """Tokens of one sequence in a batch.

    Attributes:
        outputs: tokens to compute logits for: ``"last"``, ``"all"``, ``"none"``, or a flag for
            each.
        embedded: tokens to compute embeddings for, in the same way.
        run: the text that they are of; None for those of a lease.
        draft: the nodes after the first token; None without.
        checkpoints: indices of tokens after which the recurrent state is kept.
    """

    sequence: CacheSequence
    tokens: list[int]
    outputs: str | Sequence[bool] = "last"
    embedded: str | Sequence[bool] = "none"
    run: TextRun | None = None
    draft: Draft | None = None
    checkpoints: Sequence[int] = ()

    @property
    def n_outputs(self) -> int:
        """Number of tokens with logits."""
        return self._n_of(self.outputs)

    @property
    def n_embedded(self) -> int:
        """Number of tokens with embeddings."""
        return self._n_of(self.embedded)

    def _n_of(self, flags: str | Sequence[bool]) -> int:
        if not isinstance(flags, str):
            return sum(map(bool, flags))
        return len(self.tokens) if flags == "all" else int(flags == "last")

    @property
    def wants_last(self) -> bool:
        """Whether logits are computed for the last token."""
        return self.outputs != "none" if isinstance(self.outputs, str) else bool(self.outputs[-1])

    def flags(self, which: str | Sequence[bool]) -> list[bool]:
        """``outputs`` or ``embedded`` as a flag for each token."""
        if not isinstance(which, str):
            return list(which)
        n = len(self.tokens)
        return [which == "all"] * (n - 1) + [which != "none"] * (n > 0)

    def part(self, start: int, stop: int) -> Row:
        """Some of its tokens."""
        outputs = self.outputs
        if not isinstance(outputs, str):
            outputs = outputs[start:stop]
        elif outputs == "last" and stop < len(self.tokens):
            outputs = "none"
        return Row(self.sequence, self.tokens[start:stop], outputs)


def batch_of(rows: Sequence[Row]) -> Batch:
    """The batch of some rows; a tree if one of their drafts is."""
    parents = None
    if any(row.draft is not None and not row.draft.is_chain for row in rows):
        parents = list[int]()
        for row in rows:
            first = len(parents)
            parents.append(-1)
            if row.draft is not None:
                parents += [first + 1 + parent for parent in row.draft.parent]
    if len(rows) == 1:
        row = rows[0]
        tokens, seq_id = row.tokens, row.sequence.seq_id
        drafted: Sequence[int] = () if row.draft is None else range(len(tokens))
        scales = row.sequence.scales(len(tokens))
        return Batch(
            tokens, None, seq_id, row.outputs, parents, row.embedded, row.checkpoints, drafted,
            scales,
        )  # fmt: skip
    tokens = []
    seqs: list[int] = []
    outputs: list[bool] = []
    embedded: list[bool] = []
    kept: list[int] = []
    drafted = []
    for row in rows:
        kept += [len(tokens) + i for i in row.checkpoints]
        if row.draft is not None:
            drafted += range(len(tokens), len(tokens) + len(row.tokens))
        tokens += row.tokens
        seqs += [row.sequence.seq_id] * len(row.tokens)
        outputs += row.flags(row.outputs)
        embedded += row.flags(row.embedded)
    embeddings = embedded if any(embedded) else "none"
    parts = [row.sequence.scales(len(row.tokens)) for row in rows]
    factors = [part for part in parts if part is not None]
    scales = np.concatenate(factors) if factors else None
    return Batch(tokens, None, seqs, outputs, parents, embeddings, kept, drafted, scales)


def batches(rows: Sequence[Row], n_batch: int) -> Iterator[list[Row]]:
    """Split rows into batches of at most ``n_batch`` tokens, in order."""
    part: list[Row] = []
    room = n_batch
    for row in rows:
        n, start = len(row.tokens), 0
        while start < n:
            stop = min(n, start + room)
            part.append(row.part(start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield part
                part, room = [], n_batch
    if part:
        yield part
