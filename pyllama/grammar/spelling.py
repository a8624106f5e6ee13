"""How characters are written in a grammar: in plain text, or in a JSON string.

JSON_STRING.literal('"')             # the GBNF literal of \\"
PLAIN_TEXT.chars([(0x61, 0x7A)])     # ["[a-z]"]
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from pyllama.grammar import code_points as cp
from pyllama.grammar.gbnf_writer import char_class, class_items, literal


class PlainText:
    """Characters stand for themselves."""

    def chars(self, items: Sequence[cp.Range]) -> list[str]:
        """Return GBNF alternatives for one character of a set; none if the set is empty."""
        ranges = cp.normalize(items)
        if not ranges:
            return []
        is_open = ranges[-1][1] == cp.MAX_CODE
        return [char_class(ranges) if is_open else f"[{class_items(items)}]"]

    def literal(self, text: str) -> str:
        """Return the GBNF literal of a text."""
        return literal(text)


class JsonString(PlainText):
    r"""Between the quotes of a JSON string.

    A quote, a backslash and control characters get JSON's short escapes, or ``\u00XX``; other
    characters are written as they are.
    """

    SPECIAL: cp.Ranges = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
    SHORT = (('"', 0x22), ("\\", 0x5C), ("b", 8), ("f", 12), ("n", 10), ("r", 13), ("t", 9))

    def chars(self, items: Sequence[cp.Range]) -> list[str]:
        ranges = cp.normalize(items)
        special = cp.subtract(ranges, cp.complement(self.SPECIAL))
        if not special:
            return super().chars(items)
        plain = cp.subtract(ranges, self.SPECIAL)
        texts = [char_class(plain)] if plain else []
        letters = "".join(letter for letter, code in self.SHORT if cp.contains(special, code))
        if letters:
            letters = letters.replace("\\", r"\\")
            texts.append(rf"[\\] [{letters}]")
        short = {code for _, code in self.SHORT}
        for high in (0, 1):
            codes = range(16 * high, 16 * high + 16)
            low = [c % 16 for c in codes if c not in short and cp.contains(special, c)]
            digits = cp.normalize((ord(d), ord(d)) for c in low for d in f"{c:x}{c:X}")
            if digits:
                texts.append(rf'"\\u00{high}" {char_class(digits)}')
        return texts

    def literal(self, text: str) -> str:
        return literal(json_text(text)[1:-1])


def json_text(value: object) -> str:
    """Return a value as compact JSON; only what must be escaped is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[\ud800-\udfff]", lambda m: f"\\u{ord(m[0]):04x}", text)


PLAIN_TEXT, JSON_STRING = PlainText(), JsonString()
