"""Words that must not be generated.

    SamplingParams(bad_words=("foo", (1, 2, 3)))    # a text, or token ids

A text is taken at the beginning of a word and inside of one, as its tokens with and without a space
before it. Other ways to cut the same text into tokens are not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pyllama.errors import SamplingError
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.sampler import ChainSetup, Sampler

Ids = tuple[int, ...]


class BadWords(Sampler):
    """Bans the last token of a sequence when the generated text ends with the rest of it.

    Source: vLLM, `SamplingParams.bad_words` and `apply_bad_words`.
    """

    label = "bad-words"
    keeps_all = True

    def __init__(self, sequences: Iterable[Ids]) -> None:
        self._always: list[int] = []
        self._after: dict[int, list[tuple[list[int], int]]] = {}  # last token but one: rest, last
        for *rest, last in sequences:
            if rest:
                self._after.setdefault(rest[-1], []).append((rest, last))
            else:
                self._always.append(last)
        self._generated: list[int] = []

    @classmethod
    def create(cls, setup: ChainSetup) -> BadWords | None:
        sequences = [ids for word in setup.params.bad_words for ids in _sequences(word, setup)]
        return cls(sequences) if sequences else None

    def keeps_argmax_of(self, token: int) -> bool:
        return token not in self._banned()

    def apply(self, candidates: Candidates) -> None:
        banned = self._banned()
        if banned:
            logits, positions, _ = candidates.edit(np.fromiter(banned, np.intp, len(banned)))
            logits[positions] = -np.inf

    def _banned(self) -> set[int]:
        generated, banned = self._generated, set(self._always)
        for rest, last in self._after.get(generated[-1], ()) if generated else ():
            if generated[-len(rest) :] == rest:
                banned.add(last)
        return banned

    def accept(self, token: int) -> None:
        self._generated.append(token)

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        pass

    def mark(self) -> int:
        return len(self._generated)

    def rollback(self, mark: Any) -> None:
        del self._generated[mark:]


def _sequences(word: str | Ids, setup: ChainSetup) -> list[Ids]:
    """The token sequences of a word: one inside of a word and one at its beginning."""
    if not isinstance(word, str):
        return [word]
    if setup.tokenizer is None:
        raise SamplingError(f"bad_words: {word!r} is text, which needs a tokenizer; give token ids")
    inside, first = (
        tuple(setup.tokenizer.encode(prefix + word.lstrip(), add_special=False))
        for prefix in ("", " ")
    )
    if not inside:
        raise SamplingError(f"bad_words: {word!r} has no tokens")
    differs = len(first) == len(inside) and first[0] != inside[0]
    return [inside, first] if differs else [inside]
