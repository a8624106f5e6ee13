"""Drafts from the text itself: the tokens that followed its last n-gram earlier.

    drafter = PromptLookup(max_ngram_size=2, num_pred_tokens=10)    # llama-cpp-python's
    drafter = NgramSimple(n=12, m=48)                               # llama.cpp's ngram-simple

Both keep the place of each n-gram in a dictionary, so a token costs O(1), whatever the length of
the text. They are good for quotes: edited code, summaries, questions about a text.
"""

from __future__ import annotations

from dataclasses import dataclass

from .draft import Draft, Index, IndexDrafter


@dataclass
class PromptLookup(IndexDrafter):
    """Continues the first occurrence of the longest n-gram that ends the text.

    Args:
        max_ngram_size: length of the longest n-gram; shorter ones down to 1 follow.
        num_pred_tokens: maximum number of drafted tokens.

    Source: llama-cpp-python, ``LlamaPromptLookupDecoding``.
    """

    max_ngram_size: int = 2
    num_pred_tokens: int = 10

    def new_index(self) -> Index:
        return _FirstPlaces(self.max_ngram_size, self.num_pred_tokens)


class _FirstPlaces(Index):
    def __init__(self, max_n: int, n_draft: int) -> None:
        super().__init__()
        self._n_draft = n_draft
        # for each length: the position after the first occurrence of an n-gram
        self._after: list[dict[tuple[int, ...], int]] = [{} for _ in range(max_n)]

    def append(self, token: int) -> None:
        tokens, end = self.tokens, len(self.tokens)
        for n, after in enumerate(self._after, 1):
            if n > end:
                break
            after.setdefault(tuple(tokens[end - n :]), end)  # these have a continuation now
        tokens.append(token)

    def draft(self, max_nodes: int) -> Draft | None:
        for n in range(min(len(self._after), len(self.tokens) - 1), 0, -1):
            start = self._after[n - 1].get(tuple(self.tokens[-n:]))
            if start is not None:
                return Draft.chain(self.tokens[start : start + min(max_nodes, self._n_draft)])
        return None


@dataclass
class NgramSimple(IndexDrafter):
    """Continues the last occurrence of the n-gram that ends the text.

    An occurrence at the very beginning of the text does not count, nor one with fewer than ``n``
    tokens to copy; nothing is drafted if ``m`` is less than ``n``.

    Args:
        n: length of the n-gram.
        m: maximum number of drafted tokens.

    Source: llama.cpp, ``common_ngram_simple_draft``.
    """

    n: int = 12
    m: int = 48

    def new_index(self) -> Index:
        return _LastPlaces(self.n, self.m)


class _LastPlaces(Index):
    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self._n, self._m = n, m
        self._after: dict[tuple[int, ...], int] = {}  # the position after the last occurrence

    def append(self, token: int) -> None:
        n, tokens, end = self._n, self.tokens, len(self.tokens) - 1
        if end - n >= 1:
            self._after[tuple(tokens[end - n : end])] = end
        tokens.append(token)

    def draft(self, max_nodes: int) -> Draft | None:
        n_before = len(self.tokens) - 1  # llama.cpp counts without the last token
        if n_before <= self._n + self._m + 1:
            return None
        start = self._after.get(tuple(self.tokens[-self._n :]))
        if start is None or min(self._m, n_before - start) < self._n:
            return None
        end = min(start + min(self._m, max_nodes), n_before)
        return Draft.chain(self.tokens[start:end])
