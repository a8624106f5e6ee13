"""A suffix automaton knows all substrings and their counts; drafts follow the likeliest."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllama.speculative.suffix import ROOT, SuffixAutomaton, SuffixDecoding

from .views import Text, drafted

texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=4)


def substrings(texts: list[list[int]]) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(text[i:j])
        for text in texts
        for i in range(len(text))
        for j in range(i + 1, len(text) + 1)
    )


@given(texts)
@settings(deadline=None)
def test_states_and_counts(texts: list[list[int]]) -> None:
    automaton = SuffixAutomaton()
    for text in texts:
        for token in text:
            automaton.append(token)
        automaton.end_text()
    counts = substrings(texts)
    reached = {ROOT}
    for substring, count in counts.items():
        state = ROOT
        for token in substring:
            state = automaton.next[state][token]
        reached.add(state)
        assert automaton.count[state] == count
        link = automaton.link[state]
        assert automaton.length[link] < len(substring) <= automaton.length[state]
    assert len(reached) == len(automaton) <= 2 * sum(map(len, texts)) + 1
    absent = ((*a, b) for a in [(), *counts] for b in range(3) if (*a, b) not in counts)
    for *start, token in absent:
        state = ROOT
        for t in start:
            state = automaton.next[state][t]
        assert token not in automaton.next[state]


@given(texts, st.lists(st.integers(0, 2), max_size=30), st.integers(0, 3))
@settings(deadline=None)
def test_matches_are_the_longest(texts: list[list[int]], tokens: list[int], late: int) -> None:
    """Also if texts, which split states, are added after the match began."""
    automaton = SuffixAutomaton()
    state, length = ROOT, 0
    given_texts = texts[late:]
    for text in texts[late:]:
        for token in text:
            automaton.append(token)
        automaton.end_text()
    for i, token in enumerate(tokens):
        state, length = automaton.step(state, length, token)
        known = substrings(given_texts)
        suffixes = [tuple(tokens[j : i + 1]) for j in range(i + 1)]
        assert length == max((len(s) for s in suffixes if s in known), default=0)
    for text in texts[:late]:
        for token in text:
            automaton.append(token)
        automaton.end_text()
    for token in (0, 1, 2):
        following, longer = automaton.step(state, length, token)
        found, walked = ROOT, (*tokens, token)[len(tokens) + 1 - longer :]
        for t in walked:
            found = automaton.next[found][t]
        assert found == following


SENTENCE = [5, 6, 7, 8, 9, 10]


def test_drafts() -> None:
    drafter = SuffixDecoding(factor=2, min_probability=0.05)
    assert drafted(drafter, [1, 2, 3]) == []
    assert drafted(drafter, [*SENTENCE, 1, 5, 6, 7]) == [8, 9, 10, 1, 5, 6]  # factor 2
    assert drafted(drafter, [*SENTENCE, 1, 5, 6, 7], 2) == [8, 9]
    # the most frequent continuation, in other texts too
    drafter.release(Text([1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 9], 3))
    assert drafted(drafter, [50, 51, 1, 2], 2, id=4) == [3, 4]
    # a longer match is better than a frequent one
    drafter.release(Text([50, 51, 1, 2, 77, 78], 5))
    assert drafted(drafter, [50, 51, 1, 2], 2, id=6) == [77, 78]
    assert drafted(drafter, [60, 51, 1, 2], 2, id=7) == [77, 78]
    assert drafted(drafter, [60, 1, 2], 2, id=8) == [3, 4]


def test_a_tree_has_the_likeliest_nodes() -> None:
    drafter = SuffixDecoding(factor=9, min_probability=0.01, is_tree=True)
    text = [1, 2, 3, 1, 2, 3, 1, 2, 4, 6, 1, 2, 5, 1, 2]
    draft = drafter.propose([Text(text)], [4])[0]
    assert draft is not None
    draft.check(100)
    assert draft.tokens[0] == 3 and draft.parent[0] == -1
    roots = {token for token, parent in zip(draft.tokens, draft.parent, strict=True) if parent < 0}
    assert {3} < roots <= {3, 4, 5}
    whole = drafter.propose([Text(text)], [60])[0]
    assert whole is not None and whole.first(4) == draft
    for node in range(len(whole)):  # every path occurred after the match, or after a part of it
        path = [whole.tokens[i] for i in whole.path(node)]
        assert any(text[i : i + len(path)] == path for i in range(len(text)))


def test_memory_is_bounded() -> None:
    drafter = SuffixDecoding(max_tokens=100)
    rng = np.random.default_rng(0)
    for i in range(30):
        drafter.release(Text([1, 2, i + 100, *rng.integers(0, 20, 37).tolist()], i))
        assert len(drafter.finished) <= 2 and sum(map(len, drafter.finished)) <= 404
    assert not drafter.indexes
    drafter.release(Text(rng.integers(0, 20, 1000).tolist(), 99))
    assert len(drafter.finished[-1]) <= 202
    view = Text([1, 2, 129], 7)
    assert drafter.propose([view], [3])
    for i in range(40):  # the automata that a running text is matched with are replaced
        drafter.release(Text([1, 2, 129, 4, 5, *rng.integers(0, 20, 30).tolist()], i + 100))
        view.tokens.append(int(rng.integers(20)))
        drafter.propose([view], [3])
    assert drafted(drafter, [1, 2, 129], 2, id=8) == [4, 5]


@pytest.mark.parametrize(
    "tokens", [[7] * 3000, [1, 2] * 1500, list(range(3000))], ids=["one", "two", "all"]
)
def test_extreme_texts(tokens: list[int]) -> None:
    drafter = SuffixDecoding()
    for n in range(1, len(tokens), 7):
        drafter.propose([Text(tokens[:n])], [8])
    repeats = tokens[:2] == tokens[2:4]
    assert drafted(drafter, tokens, 4) == (tokens[:4] if repeats else [])
    drafter.release(Text(tokens))
    assert drafted(drafter, tokens[:500], 4, id=1) == tokens[500:504]
