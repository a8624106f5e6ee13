r"""Cutting text into words before BPE merges.

    cut = Cutter([r"\p{N}", r" ?\p{L}+"])
    cut("In 2026, we")          # ['In', ' ', '2', '0', '2', '6', ',', ' we']

Time is linear in the text for every pre-tokenizer in the table; the pieces joined are the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from .words import Memo

BACKWARDS = "(?r)"
# What comes after the first regular expression about letters only cuts single words further.
_ABOUT_LETTERS = re.compile(r"\\p\{L|A-Z|\[\^")


@dataclass(frozen=True)
class PreTokenizer:
    """How one family of BPE vocabularies cuts text into words.

    Attributes:
        regexes: Applied in sequence, each to all pieces that the one before it left; what none
            matches stays a piece. One that begins with ``(?r)`` matches from the right.
        originals: The regexes of the family's own ``tokenizer.json``, where llama.cpp's only
            come close to them; used to recognise it, never to encode.
        ignore_merges: A word that is a token is taken whole, whatever the merges say.
        add_bos: Default of ``add_bos_token``.
        clean_spaces: llama.cpp takes spaces before punctuation out of a detokenized text.
        byte_level: Words are spelt in GPT-2's byte alphabet; else in plain UTF-8 with spaces
            written as U+2581.
        whole_newlines: A run of newlines that is a token is taken whole.
        prefix_lines: A line that begins with no space gets one.
        drop_spaces: White space is left out.
    """

    regexes: tuple[str, ...]
    originals: tuple[str, ...] | None = None
    ignore_merges: bool = False
    add_bos: bool = False
    clean_spaces: bool = False
    byte_level: bool = True
    whole_newlines: bool = False
    prefix_lines: bool = False
    drop_spaces: bool = False


class Cutter:
    """Cuts text by regular expressions in turn; pieces that come again are remembered.

    Args:
        regexes: As in `PreTokenizer`.
    """

    def __init__(self, regexes: Sequence[str]) -> None:
        cuts = list(map(_compile, regexes))
        self._first, rest = cuts[:1], cuts[1:]
        self._rest = [Memo(cut) for cut in rest]

    def __call__(self, text: str) -> list[str]:
        """Pieces of a text, none of them empty."""
        pieces = [text] if text else []
        for cut in self._first:
            pieces = cut(text)
        for memo in self._rest:
            pieces = list(chain.from_iterable(map(memo.__getitem__, pieces)))
        return pieces


def word_cutters(regexes: Sequence[str]) -> tuple[Cutter, Cutter]:
    """A cutter of texts into words, and one of words, which can hide behind a cache of words."""
    about_letters = (i for i, text in enumerate(regexes) if _ABOUT_LETTERS.search(text))
    n = 1 + next(about_letters, len(regexes) - 1)
    return Cutter(regexes[:n]), Cutter(regexes[n:])


def _compile(text: str) -> Callable[[str], list[str]]:
    # `regex` takes a while to import and a process that only decodes never needs it
    import regex

    backwards = text.startswith(BACKWARDS)
    # one capturing group, so that matches and the gaps between them come in turn
    text = f"{BACKWARDS}({text.removeprefix(BACKWARDS)})" if backwards else f"({text})"
    split = regex.compile(text).split
    if backwards:
        return lambda piece: [part for part in reversed(split(piece)) if part]
    return lambda piece: list(filter(None, split(piece)))
