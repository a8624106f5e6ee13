"""Lookup caches draft as llama.cpp's, and read and write its files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllama.errors import DraftError
from pyllama.speculative.lookup_cache import LookupCache, NgramCache

from ...tiers import tenth
from .views import Text, drafted

DATA = Path(__file__).parents[2] / "data" / "speculative"
CASES = json.loads((DATA / "ngram_cache.json").read_text(encoding="utf-8"))


def cache_of(tokens: list[int], *sizes: int) -> NgramCache:
    cache = NgramCache()
    for end in range(1, len(tokens) + 1):
        cache.append(tokens[:end], range(sizes[0], sizes[-1] + 1))
    return cache


def test_recorded_drafts() -> None:
    for case in CASES:
        drafter = LookupCache(case["n_draft"])
        drafter.dynamic, drafter.static = (
            cache_of(case["dynamic"], 1, 4),
            cache_of(case["static"], 2),
        )
        assert drafted(drafter, case["context"]) == case["draft"]


def test_a_recorded_file(tmp_path: Path) -> None:
    recorded, case = NgramCache.load(DATA / "merged_first_case.bin", 12), CASES[0]
    drafter = LookupCache(dynamic=cache_of(case["dynamic"], 1, 4))
    drafter.propose([Text(case["context"][:5])], [3])
    drafter.release(Text(case["context"]))
    assert drafter.dynamic.counts == recorded.counts
    drafter.dynamic.save(tmp_path / "x.bin")
    assert NgramCache.load(tmp_path / "x.bin").counts == recorded.counts
    sizes = [(DATA / "merged_first_case.bin").stat().st_size, (tmp_path / "x.bin").stat().st_size]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("end", [7, 8])
def test_a_conversation_is_added_once(end: int) -> None:
    drafter, turns = LookupCache(), [3, 4, 3, 4, 7, 3, 4, 5, 3, 4]
    drafter.release(Text([*turns[:4], end], 0))  # ends with 7, or a token that the next turn lacks
    drafter.release(Text(turns, 1))
    expected = cache_of(turns, 1, 4)
    if end == 8:
        expected.append([*turns[:4], end])
    assert drafter.dynamic.counts == expected.counts
    drafter.release(Text([5, 3, 4], 2))
    expected.merge(cache_of([5, 3, 4], 1, 4))
    assert drafter.dynamic.counts == expected.counts


def words(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


ONE = words(5, 6, -1, -1, 1, 7, 2)
DAMAGED = {
    "no whole numbers": (ONE[:-1], "27 bytes are no whole numbers"),
    "cut off": (ONE + words(5, 6, -1, -1), "byte 28: an n-gram with"),
    "cut off in the counts": (ONE[:-4], "byte 0: an n-gram with 1 continuations, or cut off"),
    "no continuation": (words(5, -1, -1, -1, 0), "byte 0: an n-gram with 0 continuations"),
    "negative number": (words(5, -1, -1, -1, -4, 1, 1), "with -4 continuations"),
    "huge number": (words(5, -1, -1, -1, 2**31 - 1, 1, 1), "with 2147483647 continuations"),
    "no n-gram": (words(-1, -1, -1, -1, 1, 7, 2), "byte 0: illegal tokens or counts"),
    "gap in the n-gram": (words(5, -1, 6, -1, 1, 7, 2), "illegal tokens or counts"),
    "negative token": (words(5, -2, -1, -1, 1, 7, 2), "illegal tokens or counts"),
    "negative continuation": (words(5, -1, -1, -1, 1, -7, 2), "illegal tokens or counts"),
    "count of 0": (ONE + words(5, -1, -1, -1, 1, 7, 0), "byte 28: illegal tokens or counts"),
    "other vocabulary": (words(5, -1, -1, -1, 1, 700, 2), r"token 700, the model 12 tokens"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    data, message = DAMAGED[name]
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(DraftError, match=message) as caught:
        NgramCache.load(tmp_path / "x", 12)
    assert str(tmp_path / "x") in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("count", tenth(100))
def test_any_words_are_read_or_refused(tmp_path: Path, count: int) -> None:
    @settings(max_examples=count)
    @given(st.lists(st.integers(-3, 9), max_size=40))
    def check(values: list[int]) -> None:
        path = tmp_path / "words.bin"
        path.write_bytes(words(*values))
        try:
            cache = NgramCache.load(path)
        except DraftError:
            return
        assert all(min(counts.values()) > 0 for counts in cache.counts.values())

    check()


def test_a_full_cache_counts_known_ngrams_only() -> None:
    cache = NgramCache(max_ngrams=2)
    for end in range(1, 7):
        cache.append([1, 2, 1, 2, 3, 2][:end], range(1, 2))
    assert cache.counts == {(1,): {2: 2}, (2,): {1: 1, 3: 1}}


def test_large_counts_are_clipped(tmp_path: Path) -> None:
    cache = NgramCache()
    cache.counts[1, 2] = {3: 2**40}
    cache.save(tmp_path / "x")
    assert NgramCache.load(tmp_path / "x").counts == {(1, 2): {3: 2**31 - 1}}
