"""What starts a lazy grammar, and how it is found in a growing text.

finder = Finder(Trigger("word", "<tool_call>"))
state, start = finder.find(finder.start(), bytearray(b"So: <tool_call>"), n_before=4, token=17)

The time of a text is linear in its length, up to rare patterns (`_Filter`).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import GrammarError
from . import code_points as cp
from .regex_syntax import ASCII_SETS, DOT, Node, Pattern, RegexChars, Sequence_
from .string_automaton import Expression

MAX_STEPS = 10_000  # of an automaton that are kept

State = Any
"""State of a `Finder` after a text: of its pattern's automaton, else None. Hashable."""


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
        value_type = int if self.kind == "token" else str
        if not isinstance(self.value, value_type):
            raise GrammarError(
                f"trigger {self.kind}: got {self.value!r}, "
                f"want a value of type {value_type.__name__}"
            )
        if self.value == "":
            raise GrammarError(f"trigger {self.kind}: the text is empty; leave out the triggers")
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
            text = rf"\A(?:{text})\Z"
        try:
            return re.compile(text.encode())
        except (re.error, RecursionError, OverflowError) as error:
            raise GrammarError(
                f"trigger pattern {self.value!r} is not a regular expression: {error}"
            ) from None


class Finder:
    """Finds one trigger in a growing text.

    The caller keeps the state after each token, so that it can go back to an earlier text.
    """

    def __init__(self, trigger: Trigger) -> None:
        self._token = trigger.value if trigger.kind == "token" else None
        self._word = str(trigger.value).encode() if trigger.kind == "word" else b""
        self._pattern = trigger.pattern() if trigger.kind.startswith("pattern") else None
        self._filter = None if self._pattern is None else _filter_of(trigger)

    def start(self) -> State:
        """The state of the empty text."""
        return None if self._filter is None else self._filter.start()

    def find(self, state: State, text: bytearray, n_before: int, token: int) -> tuple[State, int]:
        """Return the state, and the index where the text to match begins, -1 without a trigger.

        Args:
            state: the state before the last token.
            text: the whole text, with the last token's.
            n_before: its length before that token.
        """
        if self._token is not None:
            return None, n_before if token == self._token else -1
        if self._pattern is None:
            return None, text.find(self._word, max(0, n_before - len(self._word) + 1))
        if self._filter is not None:
            try:
                state, may_match = self._filter.step(state, text[n_before:])
            except GrammarError:  # too many states: always search
                self._filter, may_match = None, True
            if not may_match:
                return state, -1
        match = self._pattern.search(text)
        if match is None:
            return state, -1
        groups = range(1, (match.re.groups or 0) + 1)
        group = next((i for i in groups if match.end(i) > match.start(i)), 0)
        return state, match.start(group)


class _Filter:
    """An automaton of the texts in which a pattern may be found, and of some others.

    One step per byte, so that the search itself, which begins at the start of the text, is run
    only where it is likely to succeed. Thread-safe.
    """

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        self._steps: dict[tuple[State, int], State] = {}

    def start(self) -> State:
        """The state of the empty text."""
        return self._expression.start()

    def step(self, state: State, text: bytearray) -> tuple[State, bool]:
        """The state after more text, and whether the pattern may be found.

        Raises:
            GrammarError: the automaton has too many states.
        """
        for byte in text:
            if state is None:
                break
            key = state, byte
            state = self._steps.get(key, key)
            if state is key:  # not known; another thread may clear the steps
                if len(self._steps) >= MAX_STEPS:
                    self._steps.clear()
                state = self._steps[key] = self._expression.step(*key)
        return state, state is not None and self._expression.accepts(state)


@functools.lru_cache(maxsize=64)
def _filter_of(trigger: Trigger) -> _Filter | None:
    """The filter of a pattern; None for backreferences, flags and other rare syntax."""
    text = str(trigger.value).encode().decode("latin-1")  # a character is a byte
    if "{,}" in text:  # a repetition in Python only
        return None
    try:
        node = _BytePattern(text).parse()
        return _Filter(Expression(node, whole=trigger.kind == "pattern_full"))
    except GrammarError:
        return None


class _BytePattern(Pattern):
    """A parser of Python's patterns over bytes; conditions without text count as met."""

    def atom(self) -> Node:
        if self.peek() == "$":  # also before a last newline
            self.at += 1
            return _EMPTY
        node = super().atom()
        return _NO_NEWLINE if node is DOT else node

    def group(self) -> Node:
        kind = next((k for k in ("?=", "?!", "?<=", "?<!") if self.peek(len(k)) == k), "")
        self.at += len(kind)
        inner = super().group()
        return _EMPTY if kind else inner

    def escape(self) -> Node:
        if self.peek() in ("b", "B"):
            self.at += 1
            return _EMPTY
        return super().escape()

    def class_escape(self, start: int) -> int | cp.Ranges:
        kind = self.peek().lower()
        if kind not in ASCII_SETS:
            return super().class_escape(start)
        self.at += 1
        members = ASCII_SETS[kind]
        return members if self.pattern[self.at - 1] == kind else cp.complement(members)

    def group_flags(self, start: int) -> str:
        if self.peek(2) != "?:":
            self.fail("flags are not followed", start)
        return super().group_flags(start)


_EMPTY = Sequence_(())
_NO_NEWLINE = RegexChars(cp.complement(((0x0A, 0x0A),)))
