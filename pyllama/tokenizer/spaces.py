"""U+2581, which stands for a space in most vocabularies, and cutting text at it.

    pattern = word_pattern(["▁the", "end", ">▁</"])
    re.findall(pattern, "▁the▁end>▁</p")        # ['▁the', '▁end>▁</p']

Where no merge and no token can reach from a word into the space behind it, words can be encoded,
and remembered, one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

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
