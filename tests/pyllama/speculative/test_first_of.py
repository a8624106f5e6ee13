"""The first drafter that proposes anything is asked, and told what was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyllama.speculative.draft import Draft, DraftView
from pyllama.speculative.first_of import FirstOf

from .views import Text


@dataclass
class Scripted:
    """Drafts the same tokens for each text with these numbers, and keeps what it is told."""

    tokens: list[int]
    ids: set[int]
    told: list[tuple[object, ...]] = field(default_factory=list)

    def propose(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        self.told.append(("propose", [view.id for view in views], list(max_nodes)))
        return [Draft.chain(self.tokens) if view.id in self.ids else None for view in views]

    def accepted(self, view: DraftView, path: Sequence[int]) -> None:
        self.told.append(("accepted", view.id, list(path)))

    def release(self, view: DraftView) -> None:
        self.told.append(("release", view.id))


def test_first_of() -> None:
    empty, second, third = Scripted([], {1, 2}), Scripted([7, 8], {2}), Scripted([9], {1, 2})
    drafter = FirstOf([empty, second, third])
    views = [Text([1], 1), Text([1], 2), Text([1], 3)]
    assert drafter.propose(views, [4, 5, 6]) == [Draft.chain([9]), Draft.chain([7, 8]), None]
    drafter.accepted(views[1], [0])
    drafter.accepted(views[2], [])  # without a draft of these drafters
    drafter.propose(views[1:2], [5])
    drafter.release(views[1])
    drafter.accepted(views[1], [0])
    all_three = ("propose", [1, 2, 3], [4, 5, 6])
    again = ("propose", [2], [5])
    # a draft without tokens is none; drafters after the one that drafts are not asked
    assert empty.told == [all_three, again, ("release", 2)]
    assert second.told == [all_three, ("accepted", 2, [0]), again, ("release", 2)]
    assert third.told == [("propose", [1, 3], [4, 6]), ("release", 2)]
    assert not drafter.sources.keys() - {1}
