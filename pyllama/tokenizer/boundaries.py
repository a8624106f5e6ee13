"""Where text can be cut before it is encoded, since no token reaches across.

    tokens = ["▁the", "end", ">▁</"]
    re.findall(word_pattern(tokens), "▁the▁end>▁</p")       # ['▁the', '▁end>▁</p']
    Joints(tokens).cut("▁end>▁</p")                         # ['▁', 'end', '>▁</', 'p']

What is between two cuts is encoded, and remembered, by itself; the tokens are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import add

SPACE = "\u2581"
_CROSSING = re.compile(f"([^{SPACE}]){SPACE}")


def word_pattern(tokens: Iterable[str]) -> str:
    """Regular expression of words with the spaces before them, which keeps every token whole.

    Args:
        tokens: All that can come out of merging.
    """
    # Joined, it is one search instead of one a token. So a NUL counts as crossing, too, which
    # only makes for longer words.
    crossing = "".join(sorted(set(_CROSSING.findall("\0".join(tokens)))))
    word = f"{SPACE}*[^{SPACE}]+"
    if crossing:
        word += f"(?:(?<=[{re.escape(crossing)}]){SPACE}+[^{SPACE}]*)*"
    return f"{word}|{SPACE}+"


class Joints:
    """Knows which characters stand next to each other in some token.

    Args:
        tokens: All that can come out of merging.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        joined = "\0".join(tokens)
        self._pairs = set(map(add, joined, joined[1:]))

    def cut(self, word: str) -> list[str]:
        """Pieces that no token reaches out of."""
        pairs, pieces, start = self._pairs, [], 0
        for end, pair in enumerate(map(add, word, word[1:]), 1):
            if pair not in pairs:
                pieces.append(word[start:end])
                start = end
        pieces.append(word[start:])
        return pieces
