"""Drafts from the text's own n-grams, with statistics by n-gram of what was accepted.

    drafter = NgramMapK(n=12, m=48)      # llama.cpp's ngram-map-k
    drafter = NgramMapK4V(n=12, m=48)    # ngram-map-k4v: up to four continuations of an n-gram

Each n-gram (key) has one place in the text: the last one of the prompt, else the first of the
answer (the last of one step). It is in a dictionary, so a token costs O(1), whatever the length of
the text. After a rejection, a continuation (value) is drafted only up to the number of tokens that
were accepted.

The n-grams that llama.cpp skips are skipped: the first of the text, those across the border of
prompt and answer, and those with fewer than m + 2 tokens after them. No n-gram is lost by a
collision of hashes, as it may be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import DraftError
from .draft import Draft, DraftView, Index, IndexDrafter

_MAX_VALUES = 4

Key = tuple[int, ...]


@dataclass
class NgramMapK(IndexDrafter):
    """Continues the n-gram that ends the text as at its one place.

    Nothing is drafted before the text has 2 n + m tokens.

    Args:
        n: length of the n-gram.
        m: maximum number of drafted tokens.

    Raises:
        DraftError: a length is not positive.

    Source: llama.cpp, ``common_ngram_map_draft`` with ``key_only``.
    """

    n: int = 12
    m: int = 48

    def __post_init__(self) -> None:
        if self.n < 1 or self.m < 1:
            raise DraftError(f"n and m must be at least 1, got n={self.n}, m={self.m}")

    def new_index(self) -> Index:
        return _Keys(self.n, self.m)

    def accepted(self, view: DraftView, path: Sequence[int]) -> None:
        index = self.indexes.get(view.id)
        if isinstance(index, _Keys):
            index.accepted(len(path))


@dataclass
class NgramMapK4V(NgramMapK):
    """Continues the n-gram that ends the text by its most frequent m-gram.

    Up to four m-grams are counted for each n-gram. The most frequent one is drafted if it occurred
    at least twice as often as all others together. Each use of an n-gram counts the m-gram at its
    place once more.

    Args:
        min_hits: number of uses of an n-gram from which on it is drafted.

    Source: llama.cpp, ``common_ngram_map_draft`` and its documentation. (Its code drafts the m-gram
    at the n-gram's place, even if another one is the most frequent.)
    """

    min_hits: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_hits < 1:
            raise DraftError(f"min_hits must be at least 1, got {self.min_hits}")

    def new_index(self) -> Index:
        return _KeysAndValues(self.n, self.m, self.min_hits)


@dataclass(slots=True)
class _Value:
    """An m-gram that follows a key.

    Attributes:
        start: its first token.
        count: number of occurrences and uses.
        n_draft: number of tokens that are worth drafting.
    """

    start: int
    n_draft: int
    count: int = 0


@dataclass(slots=True)
class _Key:
    """A key that ended the text and had a place.

    Attributes:
        n_hits: how often.
        values: what follows it.
    """

    n_hits: int = 0
    values: list[_Value] = field(default_factory=list)


class _Keys(Index):
    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self._n, self._m = n, m
        self._n_prompt: int | None = None  # the text at the first draft, without its last token
        self._end = 0  # n-grams up to here have been added
        self._place: dict[Key, int] = {}
        self._keys: dict[Key, _Key] = {}
        self._last: tuple[_Value, int] | None = None  # value and number of tokens of the last draft

    def append(self, token: int) -> None:
        self.tokens.append(token)

    def draft(self, max_nodes: int) -> Draft | None:
        n, m, n_before = self._n, self._m, len(self.tokens) - 1
        if self._n_prompt is None:
            self._n_prompt = n_before
        self._last = None
        if n_before < 2 * n + m:
            return None
        self._add_places(n_before - n - m - 1)
        ngram = tuple(self.tokens[-n:])
        place = self._place.get(ngram)
        if place is None:
            return None
        key = self._keys.setdefault(ngram, _Key())
        key.n_hits += 1
        value = self._value(ngram, key, place)
        if value is None or value.n_draft == 0:
            return None
        n_draft = min(max_nodes, value.n_draft)
        self._last = value, n_draft
        return Draft.chain(self.tokens[value.start : value.start + n_draft])

    def accepted(self, n: int) -> None:
        """Draft the last value only up to this number, unless all drafted tokens are accepted."""
        if self._last is not None:
            value, n_drafted = self._last
            if n < n_drafted:
                value.n_draft = n
            self._last = None

    def _add_places(self, end: int) -> None:
        """Add the n-grams at positions up to ``end``, the later ones of a part first."""
        assert self._n_prompt is not None
        for start, stop in (
            (self._end, self._n_prompt - self._n - self._m - 1),
            (max(self._end, self._n_prompt), end),
        ):
            for i in range(stop, start, -1):
                self._place.setdefault(tuple(self.tokens[i : i + self._n]), i)
        self._end = max(self._end, end)

    def _value(self, ngram: Key, key: _Key, place: int) -> _Value | None:
        """What to draft after a key."""
        if not key.values:
            key.values.append(_Value(place + self._n, self._m))
        return key.values[0]


class _KeysAndValues(_Keys):
    def __init__(self, n: int, m: int, min_hits: int) -> None:
        super().__init__(n, m)
        self._min_hits = min_hits
        self._occurrences: dict[Key, list[int]] = {}

    def append(self, token: int) -> None:
        super().append(token)
        start = len(self.tokens) - self._n
        if start >= 0:
            self._occurrences.setdefault(tuple(self.tokens[start:]), []).append(start)

    def _value(self, ngram: Key, key: _Key, place: int) -> _Value | None:
        if key.n_hits < self._min_hits:
            return None
        occurrences = [place] if key.values else self._occurrences[ngram]
        for start in occurrences:
            if start > place:
                break
            self._count(key.values, start + self._n)
        best = max(key.values, key=lambda value: value.count)
        n_others = sum(value.count for value in key.values) - best.count
        return best if n_others == 0 or best.count >= 2 * n_others else None

    def _count(self, values: list[_Value], start: int) -> None:
        """Count the m-gram at a position, if it is one of the first four."""
        tokens, m = self.tokens, self._m
        for value in values:
            if tokens[start : start + m] == tokens[value.start : value.start + m]:
                value.count += 1
                return
        if len(values) < _MAX_VALUES:
            values.append(_Value(start, m, 1))
