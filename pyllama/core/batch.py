"""Tokens for one decode: ids, positions, sequences, and whose logits are wanted.

    Batch([1, 15043, 3186])                        # continue sequence 0, logits of the last token
    Batch(tokens, logits="all")
    Batch([5, 6, 7], pos=[9, 10, 10], seq_id=[[0, 1], 0, 1])   # a tree: 6 and 7 both follow 5

Values may be lists or NumPy arrays; a context checks them when it decodes.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass

from ..errors import BatchError


@dataclass(frozen=True)
class Batch:
    """One batch.

    Args:
        tokens: token ids.
        pos: positions; None continues each sequence.
        seq_id: the sequence of all tokens, or of each token one, or several that share it.
        logits: ``"last"``, ``"all"``, ``"none"``, or a flag for each token.
    """

    tokens: Sequence[int]
    pos: Sequence[int] | None = None
    seq_id: int | Sequence[int | Sequence[int]] = 0
    logits: str | Sequence[bool] = "last"

    def __post_init__(self) -> None:
        if self.pos is None and self._only_last() and type(self.seq_id) is int:
            return  # the next token of a sequence: nothing to compare
        n = len(self.tokens)
        for name, values in (("pos", self.pos), ("seq_id", self.seq_id), ("logits", self.logits)):
            if isinstance(values, str) or not isinstance(values, Sized):
                continue
            if len(values) != n:
                raise BatchError(f"batch: {n} tokens but {len(values)} values of {name}")
        if isinstance(self.logits, str) and self.logits not in ("last", "all", "none"):
            raise BatchError(
                f"batch: logits is {self.logits!r}, want 'last', 'all', 'none' or flags"
            )

    def _only_last(self) -> bool:
        return isinstance(self.logits, str) and self.logits == "last"  # an array is no truth value

    def seqs(self) -> list[int | tuple[int, ...]]:
        """The sequence of each token, or several as a tuple; the first one decides what it sees.

        Raises:
            BatchError: a token in no sequence, or twice in one.
        """
        if isinstance(self.seq_id, Sized):
            return [_sequences(s) for s in self.seq_id]
        return [int(self.seq_id)] * len(self.tokens)

    def outputs(self) -> list[int]:
        """Indices of the tokens whose logits are wanted."""
        n = len(self.tokens)
        if n == 1 and self._only_last():
            return [0]
        if isinstance(self.logits, str):
            return list(range({"all": 0, "last": max(0, n - 1), "none": n}[self.logits], n))
        return [i for i, wanted in enumerate(self.logits) if wanted]


def _sequences(seq: int | Sequence[int]) -> int | tuple[int, ...]:
    if not isinstance(seq, Sized):
        return int(seq)
    several = tuple(int(s) for s in seq)
    if not several or len(set(several)) < len(several):
        raise BatchError(f"batch: a token in sequences {list(several)}, want each once, and one")
    return several if len(several) > 1 else several[0]
