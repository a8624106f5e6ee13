"""Texts for drafters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyllama.speculative.draft import Drafter

DATA = Path(__file__).parents[2] / "data" / "speculative"


@dataclass
class Text:
    """A `View`."""

    tokens: list[int]
    id: int = 0
    matcher: None = None
    sequence_id: int | None = None


def drafted(drafter: Drafter, tokens: Sequence[int], n: int = 64, id: int = 0) -> list[int]:
    """The tokens that a drafter proposes after a text, which must be a chain."""
    draft = drafter.propose([Text(list(tokens), id)], [n])[0]
    if draft is None:
        return []
    draft.check(1 << 30)
    assert draft.is_chain and 0 < len(draft) <= n
    return draft.tokens


def accept(drafter: Drafter, text: Text, n: int) -> None:
    """Accept the first tokens of a text's last draft, which must be a chain."""
    drafter.accepted(text, range(n))


@dataclass
class Recorded:
    """Texts that llama.cpp drafted for, one after the other.

    Attributes:
        options: arguments of the drafter.
        texts: each with its tokens and drafts.
        n_prompt: number of tokens of each prompt.
    """

    options: dict[str, int]
    texts: list[dict[str, Any]]
    n_prompt: int

    @property
    def drafts(self) -> list[dict[int, list[int]]]:
        """By text, the recorded drafts after each number of tokens."""
        return [{step["end"]: step["draft"] for step in text["steps"]} for text in self.texts]

    def replay(self, drafter: Drafter) -> list[dict[int, list[int]]]:
        """The drafts of a drafter for these texts, whose tokens are accepted."""
        found: list[dict[int, list[int]]] = []
        for id, text in enumerate(self.texts):
            tokens, end = text["tokens"], self.n_prompt + 1
            found.append({})
            while end < len(tokens):
                draft, n_accepted = drafted(drafter, tokens[:end], id=id), 0
                if draft:
                    found[-1][end] = draft
                    same = [a == b for a, b in zip(draft, tokens[end:], strict=False)]
                    n_accepted = [*same, False].index(False)
                    accept(drafter, Text(tokens[:end], id), n_accepted)
                end += n_accepted + 1
        return found


def recorded_drafts(name: str) -> Iterator[Recorded]:
    """The recorded cases of one drafter; there are some."""
    cases = json.loads((DATA / "ngrams.json").read_text(encoding="utf-8"))
    found = [case for case in cases if case.pop("name") == name]
    assert found
    for case in found:
        yield Recorded(**case)
