"""ngram-mod drafts as llama.cpp's, from one table of all texts."""

from __future__ import annotations

import pytest

from pyllama.errors import DraftError
from pyllama.speculative import ngram_mod
from pyllama.speculative.ngram_mod import NgramMod

from .views import Text, accept, drafted, recorded_drafts


def test_recorded_drafts() -> None:
    for case in recorded_drafts("ngram-mod"):
        assert case.replay(NgramMod(**case.options)) == case.drafts


TEXT = list(range(100, 160))


def test_texts_that_ended_are_remembered() -> None:
    drafter = NgramMod(n_match=4, n_max=8, n_min=3)
    assert drafted(drafter, TEXT, id=0) == []
    drafter.release(Text(TEXT, 0))
    assert not drafter.indexes
    assert drafted(drafter, [7, *TEXT[:4]], id=1) == TEXT[4:12]
    assert drafted(drafter, TEXT[:5], 2, id=1) == TEXT[5:7]
    assert drafted(drafter, TEXT[:56], id=2) == TEXT[56:59]  # of the last token nothing is known
    assert drafted(drafter, TEXT[:57], id=2) == []  # fewer than n_min
    assert drafted(drafter, [*TEXT[:3], 7], id=2) == []
    assert drafted(drafter, TEXT[:3], id=3) == []  # shorter than an n-gram


def test_five_bad_drafts_in_a_row_clear_the_table() -> None:
    drafter, text = NgramMod(n_match=4, n_max=8, n_min=3), Text(TEXT[:30], 1)
    drafted(drafter, TEXT)
    for n_accepted in (1, 1, 2, 1, 1, 1, 1):  # a quarter of 8 is not bad
        assert drafted(drafter, text.tokens, id=1) == TEXT[30:38]
        accept(drafter, text, n_accepted)
    assert drafted(drafter, text.tokens, 1, id=1) == TEXT[30:31]
    accept(drafter, text, 1)  # not bad: it was cut
    for _ in range(5):
        assert drafted(drafter, text.tokens, id=1) == TEXT[30:38]
        accept(drafter, text, 0)
    assert drafted(drafter, text.tokens, id=1) == []
    assert drafted(drafter, [*TEXT[:40], *TEXT[:9]], id=1) == TEXT[9:17]  # the text is added again


def test_a_full_table_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_mod, "_MAX_USED", 40)
    drafter = NgramMod(n_match=4, n_max=8, n_min=3)
    drafted(drafter, TEXT)
    assert drafter.table.n_used == 55
    assert drafted(drafter, [*range(20), 0, 1, 2, 3], id=1) == list(range(4, 12))
    assert drafter.table.n_used == 19
    assert drafted(drafter, TEXT[:9], id=2) == []


def test_illegal_lengths() -> None:
    for options in ({"n_match": 0}, {"n_max": -1}, {"n_min": -1}):
        with pytest.raises(DraftError, match="n_match must be at least 1, n_max and n_min"):
            NgramMod(**options)
