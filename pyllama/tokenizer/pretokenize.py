r"""Cuts text into words before BPE merges.

    cut = Cutter([r"\p{N}", r" ?\p{L}+"])
    cut("In 2026, we")          # ['In', ' ', '2', '0', '2', '6', ',', ' we']

Takes linear time for every pre-tokenizer in the table. The joined pieces are the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from .words import Memo

BACKWARDS = "(?r)"
# Regular expressions after the first one with letters only cut single words further.
_ABOUT_LETTERS = re.compile(r"\\p\{L|A-Z|\[\^")


@dataclass(frozen=True)
class PreTokenizer:
    """The pre-tokenizer of a family of BPE vocabularies.

    Attributes:
        regexes: applied in sequence to all pieces of the previous one; text between matches is a
            piece too. A leading ``(?r)`` matches from the right.
        originals: regexes of the family's ``tokenizer.json``, if llama.cpp only approximates them;
            used for recognition, not for encoding.
        ignore_merges: a word that is a token is not split, even if no merges produce it.
        add_bos: default of ``add_bos_token``.
        clean_spaces: llama.cpp removes spaces before punctuation when detokenizing.
        byte_level: words are mapped to GPT-2's byte alphabet; else they are UTF-8 with spaces
            written as U+2581.
        whole_newlines: a run of newlines that is a token is not split.
        prefix_lines: a space is added to lines that do not begin with one.
        drop_spaces: white space is removed.
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
    """Cuts text by a sequence of regular expressions, with a cache of pieces.

    Args:
        regexes: as in `PreTokenizer`.
    """

    def __init__(self, regexes: Sequence[str]) -> None:
        cuts = list(map(_compile, regexes))
        self._first, rest = cuts[:1], cuts[1:]
        self._rest = [Memo(cut) for cut in rest]

    def __call__(self, text: str) -> list[str]:
        """The non-empty pieces of a text."""
        pieces = [text] if text else []
        for cut in self._first:
            pieces = cut(text)
        for memo in self._rest:
            pieces = list(chain.from_iterable(map(memo.__getitem__, pieces)))
        return pieces


def word_cutters(regexes: Sequence[str]) -> tuple[Cutter, Cutter]:
    """A cutter of text into words, and a cutter of words, whose results can be cached by word."""
    about_letters = (i for i, text in enumerate(regexes) if _ABOUT_LETTERS.search(text))
    n = 1 + next(about_letters, len(regexes) - 1)
    return Cutter(regexes[:n]), Cutter(regexes[n:])


def _compile(text: str) -> Callable[[str], list[str]]:
    # imported late: slow, and not needed for decoding
    import regex

    backwards = text.startswith(BACKWARDS)
    # with one capturing group, `split` returns matches and gaps alternately
    text = f"{BACKWARDS}({text.removeprefix(BACKWARDS)})" if backwards else f"({text})"
    split = regex.compile(text).split
    if backwards:
        return lambda piece: [part for part in reversed(split(piece)) if part]
    return lambda piece: list(filter(None, split(piece)))
