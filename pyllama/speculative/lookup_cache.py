"""llama.cpp's lookup caches: counts of the tokens that follow each n-gram.

    drafter = LookupCache(static=NgramCache.load("wiki.bin", n_vocab))  # -lcs
    drafter.dynamic = NgramCache.load("mine.bin", n_vocab)              # -lcd
    ...
    drafter.dynamic.save("mine.bin")        # with all texts that were released

Three caches are asked in this order: the context's, of n-grams of 1 to 4 tokens, the longest first;
the dynamic one, of earlier texts, with stricter thresholds; the static one, of a large corpus,
with n-grams of 2 tokens. The first two are weighted by the static one.

A file has for each n-gram 4 int32 tokens, padded with -1, an int32 number of continuations, and two
int32 for each: token and count, all little-endian. Files are read as untrusted data.

Source: llama.cpp, ``common/ngram-cache.cpp``, ``examples/lookup``.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pyggml.files import read_regular, write_whole

from ..errors import DraftError
from .draft import Draft, DraftView, Index, IndexDrafter

MAX_N = 4
STATIC_N = 2
MAX_BYTES = 1 << 28
"""Maximum size of a file; in memory it takes about ten times as much."""

Counts = dict[int, int]
_NOTHING: Counts = {}

# by length of the n-gram: a draft needs so many observations, and such a share of them, in %
_LAX = (2, 66), (2, 50), (1, 50), (1, 50)
_STRICT = (4, 75), (3, 66), (2, 66), (2, 66)


class NgramCache:
    """How often each token followed each n-gram.

    Args:
        max_ngrams: number of n-grams from which on no new ones are added.

    Attributes:
        counts: by n-gram, the count of each token.
    """

    def __init__(self, max_ngrams: int = 1 << 22) -> None:
        self.counts: dict[tuple[int, ...], Counts] = {}
        self._max_ngrams = max_ngrams

    def append(self, tokens: Sequence[int], sizes: range = range(1, MAX_N + 1)) -> None:
        """Count the last token of a text after the n-grams that it follows."""
        end = len(tokens) - 1
        for n in sizes:
            if n > end:
                break
            self._add(tuple(tokens[end - n : end]), tokens[end], 1)

    def _add(self, ngram: tuple[int, ...], token: int, count: int) -> None:
        counts = self.counts.get(ngram)
        if counts is not None:
            counts[token] = counts.get(token, 0) + count
        elif len(self.counts) < self._max_ngrams:
            self.counts[ngram] = {token: count}

    def merge(self, other: NgramCache) -> None:
        """Add the counts of another cache."""
        for ngram, counts in other.counts.items():
            for token, count in counts.items():
                self._add(ngram, token, count)

    @classmethod
    def load(cls, path: str | os.PathLike[str], n_vocab: int | None = None) -> NgramCache:
        """Read a file of llama.cpp or of `save`.

        Args:
            path: the file.
            n_vocab: refuse files with larger token ids.

        Raises:
            DraftError: the file is damaged, too large, or of another vocabulary.
            OSError: the file cannot be read.
        """
        data = read_regular(path, MAX_BYTES)
        if len(data) % 4:
            raise DraftError(f"{path}: not a lookup cache: {len(data)} bytes are no whole numbers")
        words = array("i", data)
        if sys.byteorder != "little":
            words.byteswap()
        values, cache, at = words.tolist(), cls(), 0
        while at < len(values):
            ngram, end = values[at : at + MAX_N], at + MAX_N + 1
            n = values[end - 1] if end <= len(values) else 0
            if not 0 < n <= (len(values) - end) // 2:
                where = f"byte {4 * at}: an n-gram with {n} continuations, or cut off"
                raise DraftError(f"{path}: damaged lookup cache at {where}")
            size = ngram.index(-1) if -1 in ngram else MAX_N
            tokens, counts = values[end : end + 2 * n : 2], values[end + 1 : end + 2 * n : 2]
            ids = tokens + ngram[:size]
            padded = size > 0 and ngram[size:] == (MAX_N - size) * [-1]
            if not padded or min(ids) < 0 or min(counts) <= 0:
                where = f"byte {4 * at}: illegal tokens or counts"
                raise DraftError(f"{path}: damaged lookup cache at {where}")
            if n_vocab is not None and max(ids) >= n_vocab:
                raise DraftError(
                    f"{path}: lookup cache of another vocabulary: it has token {max(ids)}, "
                    f"the model {n_vocab} tokens"
                )
            cache.counts.setdefault(tuple(ngram[:size]), dict(zip(tokens, counts, strict=True)))
            at = end + 2 * n
        return cache

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that llama.cpp reads.

        Raises:
            OSError: the file cannot be written; an old one is then unchanged.
        """
        values: list[int] = []
        for ngram, counts in self.counts.items():
            values += [*ngram, *(MAX_N - len(ngram)) * [-1], len(counts)]
            for pair in counts.items():
                values += pair
        # counts beyond int32 are not distinguished
        clipped = np.array(values, np.int64).clip(-1, 2**31 - 1)
        write_whole(path, clipped.astype("<i4").tobytes())


@dataclass
class LookupCache(IndexDrafter):
    """Drafts from the caches of the context, of earlier texts, and of a corpus.

    Args:
        n_draft: maximum number of drafted tokens.
        dynamic: cache of earlier texts; a text is added when it is released, of the next turn of a
            conversation only what follows the text before.
        static: cache of a corpus, for which only n-grams of two tokens are used.
    """

    n_draft: int = 16
    dynamic: NgramCache = field(default_factory=NgramCache)
    static: NgramCache = field(default_factory=NgramCache)
    last: list[int] = field(default_factory=list, init=False, repr=False)  # text that was added

    def new_index(self) -> Index:
        return _Context(self)

    def release(self, view: DraftView) -> None:
        """Add the text to the dynamic cache."""
        tokens = self.up_to_date(view).tokens
        super().release(view)
        start = len(self.last)
        if tokens[:start] != self.last:
            start -= 1  # a turn may end with a token that the next one lacks
        if tokens[:start] != self.last[:start]:
            start = 0
        for i in range(start, len(tokens)):
            self.dynamic.append(tokens[max(i - MAX_N, 0) : i + 1])
        self.last = tokens


class _Context(Index):
    def __init__(self, drafter: LookupCache) -> None:
        super().__init__()
        self._drafter = drafter
        self.cache = NgramCache()

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.cache.append(self.tokens)

    def draft(self, max_nodes: int) -> Draft | None:
        if len(self.tokens) < STATIC_N:
            return None
        last, n = self.tokens[-MAX_N:], len(self.tokens[-MAX_N:])
        for _ in range(min(max_nodes, self._drafter.n_draft)):
            token = self._next(last[-MAX_N:])
            if token is None:
                break
            last.append(token)
        return Draft.chain(last[n:]) if len(last) > n else None

    def _next(self, last: list[int]) -> int | None:
        static = self._drafter.static.counts.get(tuple(last[-STATIC_N:]), _NOTHING)
        for cache, thresholds in ((self.cache, _LAX), (self._drafter.dynamic, _STRICT)):
            for n in range(len(last), 0, -1):
                counts = cache.counts.get(tuple(last[-n:]))
                if counts is not None:
                    token = _likeliest(counts, static, *thresholds[n - 1])
                    if token is not None:
                        return token
        return _likeliest(static, _NOTHING, *_LAX[STATIC_N - 1]) if static else None


def _likeliest(
    counts: Mapping[int, int], static: Mapping[int, int], min_sum: int, min_percent: int
) -> int | None:
    """The token with the largest count, weighted by ``static``, if it passes the thresholds.

    Of equal ones it is the one that was first seen last, as mostly in llama.cpp, where it depends
    on a hash table.
    """
    total = sum(counts.values())
    if total < min_sum or 100 * max(counts.values()) < min_percent * total:
        return None
    best, best_count, best_score = None, 0, 0
    for token, count in counts.items():
        score = count * (100 * static[token] if token in static else 1)
        if score >= best_score:
            best, best_count, best_score = token, count, score
    return best if 100 * best_count >= min_percent * total else None


def ngram_cache(
    n_draft: int = 8,
    dynamic: str | os.PathLike[str] | NgramCache | None = None,
    static: str | os.PathLike[str] | NgramCache | None = None,
    n_vocab: int | None = None,
) -> LookupCache:
    """A `LookupCache` with caches from files.

    Args:
        n_draft: maximum number of drafted tokens.
        dynamic: cache of earlier texts (``-lcd``), or its file.
        static: cache of a corpus (``-lcs``), or its file.
        n_vocab: refuse files with larger token ids.

    Raises:
        DraftError: a file is damaged, too large, or of another vocabulary.
        OSError: a file cannot be read.
    """

    def load(cache: str | os.PathLike[str] | NgramCache | None) -> NgramCache:
        if cache is None or isinstance(cache, NgramCache):
            return cache or NgramCache()
        return NgramCache.load(cache, n_vocab)

    return LookupCache(n_draft, load(dynamic), load(static))
