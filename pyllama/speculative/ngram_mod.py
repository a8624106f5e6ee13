"""Drafts from one table of hashed n-grams, which all texts share: llama.cpp's ngram-mod.

    drafter = NgramMod(n_match=24, n_max=64, n_min=48)

The table has for each hash of an n-gram the token that followed it last. It has a fixed size
(16 MiB), no n-gram is stored, and what was read from earlier prompts and answers stays, so it suits
agents and other programs that send similar texts. Colliding n-grams give wrong tokens; a draft has
therefore at least ``n_min`` tokens. A token costs O(1), a draft about a microsecond per token.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import DraftError
from .draft import Draft, DraftView, Index, IndexDrafter

_FACTOR = 6364136223846793005
_MASK = (1 << 64) - 1
_SIZE = 1 << 22
_MAX_USED = _SIZE // 4  # a fuller table is cleared
_EMPTY = -1
_CHUNK = 32  # the tokens of an answer are added when there are so many
_MAX_LOW = 5  # a table with so many bad drafts in a row is cleared
_MIN_ACCEPTED = 0.25  # share of a draft that is not bad


class _Table:
    """The token that followed each n-gram last, by the n-gram's hash."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._drop = pow(_FACTOR, n, 1 << 64)  # factor of a token that leaves the n-gram
        self.clear()

    def clear(self) -> None:
        """Forget all n-grams."""
        self._tokens = array("i", [_EMPTY]) * _SIZE
        self.n_used = 0

    def hash(self, ngram: Sequence[int]) -> int:
        """The hash of an n-gram."""
        value = 0
        for token in ngram:
            value = (value * _FACTOR + token) & _MASK
        return value

    def add(self, tokens: Sequence[int], start: int, end: int) -> None:
        """Add the n-grams from a position on whose next token is before another one."""
        n, table, drop = self.n, self._tokens, self._drop
        value = self.hash(tokens[start : start + n])
        for i in range(start, end - n):
            token, slot = tokens[i + n], value % _SIZE
            self.n_used += table[slot] == _EMPTY
            table[slot] = token
            value = (value * _FACTOR + token - tokens[i] * drop) & _MASK

    def following(self, ngram: Sequence[int], max_tokens: int) -> list[int]:
        """The tokens after an n-gram, as far as they are known."""
        tokens, value = list(ngram), self.hash(ngram)
        for i in range(max_tokens):
            token = self._tokens[value % _SIZE]
            if token == _EMPTY:
                break
            tokens.append(token)
            value = (value * _FACTOR + token - tokens[i] * self._drop) & _MASK
        return tokens[self.n :]


@dataclass
class NgramMod(IndexDrafter):
    """Continues the n-gram that ends the text by a table of all texts.

    The table is cleared when a quarter is used, and after five drafts in a row of which less than
    a quarter was accepted.

    Args:
        n_match: length of the n-gram.
        n_max: maximum number of drafted tokens.
        n_min: number of tokens that must be known for a draft, also where fewer are asked for.

    Raises:
        DraftError: a length is out of its range.

    Source: llama.cpp, ``common_ngram_mod``, ``common_speculative_impl_ngram_mod``. (There the
    accepted share is that of the draft before it was cut to the maximum.)
    """

    n_match: int = 24
    n_max: int = 64
    n_min: int = 48
    table: _Table = field(init=False, repr=False)
    n_low: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.n_match < 1 or self.n_max < 0 or self.n_min < 0:
            raise DraftError(
                f"n_match must be at least 1, n_max and n_min at least 0, got "
                f"n_match={self.n_match}, n_max={self.n_max}, n_min={self.n_min}"
            )
        self.table = _Table(self.n_match)

    def new_index(self) -> Index:
        return _Hashed(self)

    def accepted(self, view: DraftView, path: Sequence[int]) -> None:
        index = self.indexes.get(view.id)
        if not isinstance(index, _Hashed) or not index.n_drafted:
            return
        is_low = len(path) < _MIN_ACCEPTED * index.n_drafted
        self.n_low = self.n_low + 1 if is_low else 0
        if self.n_low >= _MAX_LOW:
            self.table.clear()
            self.n_low = index.n_added = 0


class _Hashed(Index):
    """A text of which the n-grams up to position ``n_added`` are in the table."""

    def __init__(self, drafter: NgramMod) -> None:
        super().__init__()
        self._drafter = drafter
        self._is_new = True
        self.n_added = 0
        self.n_drafted = 0  # length of the last draft

    def append(self, token: int) -> None:
        self.tokens.append(token)

    def draft(self, max_nodes: int) -> Draft | None:
        drafter, table, end = self._drafter, self._drafter.table, len(self.tokens) - 1
        self.n_drafted = 0
        if end < table.n:
            self._is_new = False
            return None
        if self._is_new and table.n_used > _MAX_USED:
            table.clear()
        if self._is_new or self.n_added + _CHUNK < end:
            table.add(self.tokens, self.n_added, end)
            self.n_added = end - table.n
        self._is_new = False
        n = min(drafter.n_max, max(drafter.n_min, max_nodes))
        tokens = table.following(self.tokens[-table.n :], n)
        if len(tokens) < min(drafter.n_min, drafter.n_max):
            return None
        del tokens[max_nodes:]
        self.n_drafted = len(tokens)
        return Draft.chain(tokens) if tokens else None
