"""ngram-map-k and ngram-map-k4v draft as llama.cpp's."""

from __future__ import annotations

import pytest

from pyllama.errors import DraftError
from pyllama.speculative.ngram_map import NgramMapK, NgramMapK4V

from .views import Text, accept, drafted, recorded_drafts

DRAFTERS = {"ngram-map-k": NgramMapK, "ngram-map-k4v": NgramMapK4V}


@pytest.mark.parametrize("name", DRAFTERS)
def test_recorded_drafts(name: str) -> None:
    for case in recorded_drafts(name):
        assert case.replay(DRAFTERS[name](**case.options)) == case.drafts


PROMPT = [0, 1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 9, 9, 9]


def test_places() -> None:
    drafter = NgramMapK(n=2, m=2)
    assert drafted(drafter, [0, 9, 1, 2, 3, 1, 2]) == []  # fewer than m + 2 tokens after it
    assert drafted(drafter, [*PROMPT, 1, 2], id=1) == [6, 7]  # the last place in the prompt
    answer = [*PROMPT, 1, 2, 50, 51, 52, 53, 51, 52, 60, 61, 62, 63]
    for n in range(len(PROMPT) + 3, len(answer)):
        drafted(drafter, answer[:n], id=1)
    assert drafted(drafter, [*answer, 51, 52], id=1) == [53, 51]  # the first place in the answer
    assert drafted(drafter, [*answer, 51, 52, 1, 2], 1, id=1) == [6]  # not that in the answer
    assert drafted(drafter, [*answer, 51, 52, 1, 2, 52, 51], id=1) == []
    assert drafted(drafter, [0, *PROMPT[1:], 0, 1], id=2) == []  # the first n-gram does not count


REPEATED = [0, 1, 2, 6, 7, 8, 9, 9, 9, 4, 4, 1, 2]


@pytest.mark.parametrize("kind", DRAFTERS.values())
def test_a_rejection_shortens_later_drafts(kind: type[NgramMapK]) -> None:
    drafter, text = kind(n=2, m=3), Text(REPEATED)
    for n_accepted, expected in ((3, 3), (2, 3), (2, 2), (1, 2), (0, 1), (0, 0)):
        n = len(drafted(drafter, text.tokens))
        assert n == expected
        if n:
            accept(drafter, text, n_accepted)


def test_a_limit_of_the_engine_shortens_no_later_draft() -> None:
    drafter, text = NgramMapK(n=2, m=3), Text(REPEATED)
    assert drafted(drafter, text.tokens, 1) == [6]
    accept(drafter, text, 1)
    assert drafted(drafter, text.tokens) == [6, 7, 8]
    assert drafted(drafter, text.tokens, 2) == [6, 7]
    accept(drafter, text, 1)
    assert drafted(drafter, text.tokens) == [6]


def test_the_most_frequent_continuation_is_drafted() -> None:
    drafter = NgramMapK4V(n=1, m=2)
    text = [0, 5, 1, 2, 5, 1, 2, 5, 3, 4, 9, 9, 9, 9, 5]
    # 1, 2 twice, and 3, 4 once, at the place of the n-gram, where llama.cpp copies
    assert drafted(drafter, text) == [1, 2]
    # each use counts 3, 4 once more
    assert drafted(drafter, text) == []
    assert [drafted(drafter, text) for _ in range(2)] == [[], [3, 4]]


def test_hits_before_the_first_draft() -> None:
    drafter = NgramMapK4V(n=2, m=2, min_hits=3)
    assert [drafted(drafter, REPEATED) for _ in range(3)] == [[], [], [6, 7]]


def test_illegal_lengths() -> None:
    for options in ({"n": 0}, {"m": 0}):
        with pytest.raises(DraftError, match="n and m must be at least 1, got"):
            NgramMapK(**options)
    with pytest.raises(DraftError, match="min_hits must be at least 1, got 0"):
        NgramMapK4V(min_hits=0)
