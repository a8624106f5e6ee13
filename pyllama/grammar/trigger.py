"""What starts a lazy grammar, and how it is found in a growing text.

finder = Finder(Trigger("word", "<tool_call>"))
finder.find(bytearray(b"So: <tool_call>"), n_before=4, token=17)    # 4
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ..errors import GrammarError


@dataclass(frozen=True)
class Trigger:
    """What starts a lazy grammar; the text to match begins with it.

    Args:
        kind: ``word``: a text. ``pattern``: a regular expression (Python's `re`) found anywhere;
            the text to match begins with the first group that is not empty, else with the match.
            ``pattern_full``: one that the whole text so far matches. ``token``: a token.
        value: the text or expression, or the token's id.
    """

    kind: Literal["word", "pattern", "pattern_full", "token"]
    value: str | int

    def __post_init__(self) -> None:
        wanted = int if self.kind == "token" else str
        if not isinstance(self.value, wanted):
            raise GrammarError(
                f"trigger {self.kind}: got {self.value!r}, want a value of type {wanted.__name__}"
            )
        if self.kind in ("pattern", "pattern_full"):
            self.pattern()
        elif self.kind not in ("word", "token"):
            raise GrammarError(
                f"trigger kind {self.kind!r} is unknown; use word, pattern, pattern_full or token"
            )

    def pattern(self) -> re.Pattern[bytes]:
        """The compiled expression over UTF-8."""
        text = str(self.value)
        if self.kind == "pattern_full":
            text = rf"\A(?:{text.removeprefix('^').removesuffix('$')})\Z"
        try:
            return re.compile(text.encode())
        except (re.error, RecursionError, OverflowError) as error:
            raise GrammarError(
                f"trigger pattern {self.value!r} is not a regular expression: {error}"
            ) from None


class Finder:
    """Finds one trigger in a growing text."""

    def __init__(self, trigger: Trigger) -> None:
        self._kind = trigger.kind
        self._token = trigger.value if trigger.kind == "token" else None
        self._word = str(trigger.value).encode() if trigger.kind == "word" else b""
        self._pattern = trigger.pattern() if trigger.kind.startswith("pattern") else None

    def find(self, text: bytearray, n_before: int, token: int) -> int:
        """Where the text to match begins, -1 without a trigger.

        Args:
            text: the whole text, with the last token's.
            n_before: its length before that token.
        """
        if self._token is not None:
            return n_before if token == self._token else -1
        if self._pattern is None:
            return text.find(self._word, max(0, n_before - len(self._word) + 1))
        match = self._pattern.search(text)
        if match is None:
            return -1
        groups = range(1, (match.re.groups or 0) + 1)
        group = next((i for i in groups if match.end(i) > match.start(i)), 0)
        return match.start(group)
