"""Several drafters in an order of preference: llama.cpp's ``--spec-type a,b``.

    drafter = FirstOf([NgramMapK(), PromptLookup()])

A text gets the draft of the first drafter that proposes anything for it, and only that drafter
learns what was accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .draft import Draft, Drafter, DraftView


@dataclass
class FirstOf:
    """A drafter that asks others in turn.

    Args:
        drafters: the most preferred one first.

    Source: llama.cpp, ``common_speculative_draft``.
    """

    drafters: Sequence[Drafter]
    sources: dict[int, Drafter] = field(default_factory=dict, init=False, repr=False)

    def propose(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        drafts: list[Draft | None] = [None] * len(views)
        for view in views:
            self.sources.pop(view.id, None)
        for drafter in self.drafters:
            left = [i for i, draft in enumerate(drafts) if draft is None]
            if not left:
                break
            found = drafter.propose([views[i] for i in left], [max_nodes[i] for i in left])
            for i, draft in zip(left, found, strict=True):
                if draft:
                    drafts[i] = draft
                    self.sources[views[i].id] = drafter
        return drafts

    def accepted(self, view: DraftView, path: Sequence[int]) -> None:
        source = self.sources.pop(view.id, None)
        if source is not None:
            source.accepted(view, path)

    def release(self, view: DraftView) -> None:
        self.sources.pop(view.id, None)
        for drafter in self.drafters:
            drafter.release(view)
