"""Texts for drafters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyllama.speculative.draft import Drafter


@dataclass
class Text:
    """A `View`."""

    tokens: list[int]
    id: int = 0


def drafted(drafter: Drafter, tokens: Sequence[int], n: int = 64, id: int = 0) -> list[int]:
    """The tokens that a drafter proposes after a text, which must be a chain."""
    draft = drafter.propose([Text(list(tokens), id)], [n])[0]
    if draft is None:
        return []
    draft.check(1 << 30)
    assert draft.is_chain and 0 < len(draft) <= n
    return draft.tokens
