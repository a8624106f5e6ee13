"""When the engine asks for drafts, by simulated times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyllama.speculative import Draft, DraftView, Speculation
from pyllama.speculative.draft import Costs

from .views import Text


class Chains:
    """Drafts as many tokens as it may."""

    def propose(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        return [Draft.chain([5] * n) if n else None for n in max_nodes]

    def accepted(self, view: DraftView, path: Sequence[int]) -> None:
        """Nothing to do."""

    def release(self, view: DraftView) -> None:
        """Nothing to do."""


def test_texts_without_drafts_rest_until_a_probe_is_paid_for() -> None:
    speculation, text = Speculation(Chains()), Text([1, 2, 3])
    asked, drafted = list[int](), list[int]()
    for step in range(2400):
        is_good = step >= 1200
        drafts = None
        if not speculation.rests([text]):
            asked.append(step)
            drafts = speculation.propose([text], [8])
        (draft,) = drafts or [None]
        n_drafted = n_accepted = 0
        if draft is not None:
            drafted.append(step)
            n_drafted = len(draft)
            n_accepted = n_drafted if is_good else 0
            speculation.verified(text, draft, range(n_accepted))
        text.tokens.extend([5] * (n_accepted + 1))
        step_s = 1 + 0.5 * n_drafted
        speculation.count_step(1, n_drafted, n_accepted + 1, step_s, 0.0)
    before = [step for step in drafted if step < 1200]
    assert 3 < len(before) < 40  # 1 % of the time
    assert len([step for step in asked if step < 1200]) < 120
    assert len([step for step in drafted if step >= 2000]) > 300  # it has noticed


def test_a_new_text_does_not_rest() -> None:
    speculation, texts = Speculation(Chains()), [Text([1, 2, 3])]
    assert not speculation.rests(texts)
    assert speculation.propose(texts, [8]) is None  # no time is known
    assert speculation.rests(texts)
    other = Text([4, 5])
    other.id = texts[0].id + 1
    assert not speculation.rests([*texts, other]) and not speculation.rests([other])


def test_reading_a_text_is_no_time_of_drafting() -> None:
    drafter: Any = Chains()
    drafter.costs = Costs(read_s=0.0, accept_rate=0.9, draft_s=0.01)
    speculation, text = Speculation(drafter), Text(list(range(100)))
    while (drafts := speculation.propose([text], [8])) is None:
        speculation.count_step(1, 0, 1, 1.0, 0.0)
    assert drafts[0] is not None
    speculation.verified(text, drafts[0], [0])
    assert speculation._texts[text.id].seconds_per_token == 0.01
