"""Mapping text character by character, with a table that fills itself.

    LOWER = CharacterMap(lambda char: char.lower()[0])
    "Straße".translate(LOWER)                   # 'straße'

A table holds at most one entry for each character of Unicode; threads may share it.
"""

from __future__ import annotations

from collections.abc import Callable

# White space as Unicode and llama.cpp see it; ``str.isspace`` counts U+001C to U+001F, too.
WHITE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


class CharacterMap(dict[int, str]):
    """Table for ``str.translate`` of a function from a character to a string."""

    def __init__(self, function: Callable[[str], str]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, code: int) -> str:
        self[code] = result = self._function(chr(code))
        return result


# one character for one, as in llama.cpp; ``str.lower`` also minds the neighbours of a sigma
LOWER = CharacterMap(lambda char: char.lower()[0])
