"""Maps text character by character, with a lazily filled table.

    LOWER = CharacterMap(lambda char: char.lower()[0])
    "Straße".translate(LOWER)                   # 'straße'

A table has at most one entry per Unicode character; threads may share it.
"""

from __future__ import annotations

from collections.abc import Callable

# White space by Unicode, as in llama.cpp; ``str.isspace`` also includes U+001C to U+001F.
WHITE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


class CharacterMap(dict[int, str]):
    """A table for ``str.translate``, computed by a function from a character to a string."""

    def __init__(self, function: Callable[[str], str]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, code: int) -> str:
        self[code] = result = self._function(chr(code))
        return result


# one character each, as in llama.cpp; ``str.lower`` of a text depends on the context of sigmas
LOWER = CharacterMap(lambda char: char.lower()[0])
