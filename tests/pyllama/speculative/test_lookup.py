"""Lookup drafters propose what the plain searches of their sources propose."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from pyllama.speculative.lookup import NgramSimple, PromptLookup

from .views import Text, drafted


def prompt_lookup(tokens: list[int], max_n: int, n_draft: int) -> list[int]:
    """The rule of LlamaPromptLookupDecoding: the first match of the longest n-gram."""
    ids = np.array(tokens)
    for n in range(min(max_n, ids.size - 1), 0, -1):
        found = (sliding_window_view(ids, n) == ids[-n:]).all(axis=1).nonzero()[0] + n
        for start in found.tolist():
            if start < ids.size:
                return tokens[start : start + n_draft]
    return []


def ngram_simple(tokens: list[int], n: int, m: int) -> list[int]:
    """The rule of common_ngram_simple_draft: the last match, searched backwards."""
    before, pattern = tokens[:-1], tokens[-n:]
    if len(before) <= n + m + 1:
        return []
    for at in range(len(before) - n - 1, 0, -1):
        if before[at : at + n] == pattern:
            size = min(m, len(before) - at - n)
            return before[at + n : at + n + size] if size >= n else []
    return []


texts = st.lists(st.integers(0, 2), min_size=1, max_size=60)
steps = st.lists(st.integers(1, 4), max_size=60)


@given(texts, steps, st.integers(1, 4), st.integers(1, 6))
@settings(deadline=None)
def test_prompt_lookup(tokens: list[int], steps: list[int], n: int, m: int) -> None:
    """Also where tokens come a few at a time, for two texts at once."""
    drafter = PromptLookup(n, m)
    n_given = 0
    for step in [*steps, len(tokens)]:
        n_given += step
        both = [tokens[:n_given], tokens[::-1][:n_given]]
        drafts = drafter.propose([Text(text, i) for i, text in enumerate(both)], [99, 99])
        for text, draft in zip(both, drafts, strict=True):
            assert (draft.tokens if draft else []) == prompt_lookup(text, n, m)
    assert drafted(drafter, tokens, 2) == prompt_lookup(tokens, n, m)[:2]


@given(texts, steps, st.integers(1, 4), st.integers(1, 6))
@settings(deadline=None)
def test_ngram_simple(tokens: list[int], steps: list[int], n: int, m: int) -> None:
    drafter = NgramSimple(n, m)
    n_given = 0
    for step in [*steps, len(tokens)]:
        n_given += step
        assert drafted(drafter, tokens[:n_given]) == ngram_simple(tokens[:n_given], n, m)


def test_a_shifted_or_released_text_is_indexed_again() -> None:
    drafter = PromptLookup(2, 3)
    assert drafted(drafter, [1, 2, 3, 4, 1, 2]) == [3, 4, 1]
    assert drafted(drafter, [1, 2, 9, 9, 9, 9, 9, 1, 2]) == [9, 9, 9]
    assert drafted(drafter, [5, 6]) == []
    assert drafted(drafter, [5, 6, 5]) == [6, 5]
    drafter.release(Text([], 0))
    assert not drafter.indexes
    assert drafted(drafter, [5, 6, 5], 0) == []
