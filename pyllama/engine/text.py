"""From generated tokens to text: whole characters, and where the text ends.

    text = TextAssembler(tokenizer, ("User:",))
    for token in tokens:
        show(text.push(token))
        if text.stops.matched is not None: break
    show(text.flush())

    stops = StopStrings(["</s>", "User:"])
    stops.push("Hello Us")      # ("Hello ", False): "Us" may be the start of a stop string
    stops.push("er: no")        # ("", True)
    lines = LineEnds(n_indent=4, max_s=1.0)
    lines.push("\n  no")        # "indent" or "time" if the text ends here

The output of `StopStrings` does not depend on the boundaries of pieces. The cost per character is
amortised constant for any number of stop strings (Aho-Corasick).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from ..errors import SamplingError
from ..tokenizer import TokenStream
from ..tokenizer.detokenize import Pieces


class TextAssembler:
    """Joins the bytes of tokens to characters, and holds back beginnings of stop strings.

    Args:
        tokenizer: gives the bytes of tokens.
        stop: stop strings.
        special: include the text of special tokens: of all, or of these ids.
        include_stop: include the stop string that is found.
        drop_unfinished: drop an incomplete character at the end, instead of U+FFFD.

    Attributes:
        stops: the stop string found, if any; no text follows it.
        n_held: number of characters held back; an incomplete one counts as one.

    Raises:
        SamplingError: a stop string is empty.
    """

    def __init__(
        self,
        tokenizer: Pieces,
        stop: str | Iterable[str] = (),
        *,
        special: bool | frozenset[int] = False,
        include_stop: bool = False,
        drop_unfinished: bool = False,
    ) -> None:
        self._stream = TokenStream(tokenizer, special)
        self.stops = StopStrings(stop)
        self._has_stops, self.n_held = bool(stop), 0
        self._include_stop, self._drop_unfinished = include_stop, drop_unfinished

    def push(self, token: int) -> str:
        """The text that this token completes."""
        stream = self._stream
        text = stream.push(token)
        if self._has_stops:
            text, stopped = self.stops.push(text)
            if stopped and self._include_stop:
                text += self.stops.matched or ""
        self.n_held = len(self.stops.held) + bool(stream.partial)
        return text

    def flush(self) -> str:
        """The text held back, at the end of the tokens."""
        rest, self.n_held = self._stream.flush(), 0
        text, _ = self.stops.push("" if self._drop_unfinished else rest)
        return text + self.stops.flush()

    def piece(self, token: int) -> str:
        """The text of one token alone."""
        return self._stream.push(token) + self._stream.flush()


class StopStrings:
    """Passes text on up to the first stop string.

    The first is the one completed first, where generation ends; the longest of those that end at
    the same character. The stop string itself is not emitted.

    Args:
        stops: one string or several; none passes all text.

    Attributes:
        matched: the stop string found, or None.
        rest: the text after ``matched`` in the same piece.
        held: the text held back, the longest suffix that is a prefix of a stop string.

    Raises:
        SamplingError: a stop string is empty.

    Source: Aho and Corasick, Efficient string matching, 1975.
    """

    def __init__(self, stops: str | Iterable[str]) -> None:
        patterns = [stops] if isinstance(stops, str) else list(stops)
        if "" in patterns:
            raise SamplingError(
                f"stop string {patterns.index('')} is empty and would match at once; leave it out"
            )
        self.matched: str | None = None
        self.rest = ""
        self.held = ""
        self._node = 0
        self._automaton = _Automaton.of(tuple(patterns))

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next piece of text.

        Returns:
            The text to emit, and whether a stop string was found; nothing is emitted after one.
        """
        if self.matched is not None:
            return "", True
        automaton, node = self._automaton, self._node
        next_, fail, depth, found = automaton.next, automaton.fail, automaton.depth, automaton.found
        pending = self.held + text
        for end, char in enumerate(text, start=len(self.held) + 1):
            while node and char not in next_[node]:
                node = fail[node]
            node = next_[node].get(char, 0)
            match = found[node]
            if match is not None:
                self.matched, self.held, self._node = match, "", 0
                self.rest = pending[end:]
                return pending[: end - len(match)], True
        self._node = node
        cut = len(pending) - depth[node]
        self.held = pending[cut:]
        return pending[:cut], False

    def flush(self) -> str:
        """The text held back, at the end of the input."""
        held, self.held, self._node = self.held, "", 0
        return held


class _Automaton:
    """The trie of some patterns; the texts of a request share it.

    Attributes:
        next, fail, depth, found: edges, failure link, depth and match of each node.
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.fail = [0]
        self.depth = [0]
        self.found: list[str | None] = [None]
        for pattern in patterns:
            self._add(pattern)
        todo = deque(self.next[0].values())
        while todo:
            node = todo.popleft()
            for char, child in self.next[node].items():
                suffix = self.fail[node]
                while suffix and char not in self.next[suffix]:
                    suffix = self.fail[suffix]
                self.fail[child] = self.next[suffix].get(char, 0)
                if self.found[child] is None:
                    self.found[child] = self.found[self.fail[child]]
                todo.append(child)

    @classmethod
    @lru_cache(maxsize=4)
    def of(cls, patterns: tuple[str, ...]) -> _Automaton:
        """The automaton of some patterns, made at the first call."""
        return cls(patterns)

    def __deepcopy__(self, memo: object) -> _Automaton:
        return self

    def _add(self, pattern: str) -> None:
        node = 0
        for depth, char in enumerate(pattern, start=1):
            if char not in self.next[node]:
                self.next[node][char] = len(self.next)
                self.next.append({})
                self.fail.append(0)
                self.depth.append(depth)
                self.found.append(None)
            node = self.next[node][char]
        self.found[node] = pattern


class Indentation:
    """Finds the end of an indented block: a line that begins further left.

    Args:
        n: spaces and tabs that each line but the first must begin with.

    Source: llama.cpp, ``server_context::process_token``: a line is checked from the token on that
    follows that of its line break.
    """

    def __init__(self, n: int) -> None:
        self._n, self._text, self._line, self._has_line = n, "", 0, False

    def add(self, text: str) -> int | None:
        """Add a token's text; returns the length of the text up to a line that ends it."""
        self._text += text
        found = None
        if self._has_line:
            if self._line:
                line = self._text[self._line :]
                n = len(line) - len(line.lstrip(" \t"))
                if n < min(self._n, len(line)):
                    found = self._line + n
            self._line = self._text.find("\n", self._line) + 1 or self._line
        self._has_line = self._has_line or "\n" in text
        return found


class LineEnds:
    """Ends a text at a line that is not indented, or at a line break after some time.

    Args:
        n_indent: see `Indentation`; 0 for any.
        max_s: seconds from the first piece after which a line break ends the text; None for any.

    Attributes:
        n_cut: after ``indent``: characters of the text from the line on.
    """

    def __init__(self, n_indent: int, max_s: float | None) -> None:
        self._indentation = Indentation(n_indent) if n_indent > 0 else None
        self._max_s, self._first_s = max_s, 0.0
        self._n_pushed = self.n_cut = 0

    def push(self, text: str) -> Literal["indent", "time"] | None:
        """Take the text of the next token; returns why it is the last one, or None."""
        self._n_pushed += len(text)
        length = None if self._indentation is None else self._indentation.add(text)
        if length is not None:
            self.n_cut = self._n_pushed - length
            return "indent"
        now = time.perf_counter()
        self._first_s = self._first_s or now
        is_late = self._max_s is not None and now - self._first_s > self._max_s
        return "time" if is_late and "\n" in text else None
