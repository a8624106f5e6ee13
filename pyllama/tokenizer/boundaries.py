"""Finds positions where text can be cut before encoding, because no token spans them.

    tokens = ["▁the", "end", ">▁</"]
    re.findall(word_pattern(tokens), "▁the▁end>▁</p")       # ['▁the', '▁end>▁</p']
    Joints(tokens).cut("▁end>▁</p")                         # ['▁', 'end', '>▁</', 'p']

Pieces between two cuts are encoded and cached separately; the tokens are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import add

SPACE = "\u2581"
_CROSSING = re.compile(f"([^{SPACE}]){SPACE}")


def word_pattern(tokens: Iterable[str]) -> str:
    """A regular expression for words with preceding spaces, which never cuts inside a token.

    Args:
        tokens: all possible results of merging.
    """
    # One search in the joined tokens. A NUL before a space matches too, which only makes words
    # longer.
    crossing = "".join(sorted(set(_CROSSING.findall("\0".join(tokens)))))
    word = f"{SPACE}*[^{SPACE}]+"
    if crossing:
        word += f"(?:(?<=[{re.escape(crossing)}]){SPACE}+[^{SPACE}]*)*"
    return f"{word}|{SPACE}+"


class Joints:
    """The pairs of characters that are adjacent in some token.

    Args:
        tokens: all possible results of merging.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        joined = "\0".join(tokens)
        self._pairs = set(map(add, joined, joined[1:]))

    def cut(self, word: str) -> list[str]:
        """The word cut between characters that are adjacent in no token."""
        pairs, pieces, start = self._pairs, [], 0
        for end, pair in enumerate(map(add, word, word[1:]), 1):
            if pair not in pairs:
                pieces.append(word[start:end])
                start = end
        pieces.append(word[start:])
        return pieces
