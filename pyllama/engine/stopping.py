"""Finds stop strings in text that arrives in pieces.

    stops = StopStrings(["</s>", "User:"])
    stops.push("Hello Us")      # ("Hello ", False): "Us" may be the start of a stop string
    stops.push("er: no")        # ("", True)

The output does not depend on the boundaries of pieces. The cost per character is amortised constant
for any number of stop strings (Aho-Corasick).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import lru_cache

from pyllama.errors import SamplingError


class StopStrings:
    """Passes text on up to the first stop string.

    The first is the one completed first, where generation ends; the longest of those that end at
    the same character. The stop string itself is not emitted.

    Args:
        stops: one string or several; none passes all text.

    Attributes:
        matched: the stop string found, or None.
        rest: the text after ``matched`` in the same piece.

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
        self._held = ""  # longest suffix of the text that is a prefix of a stop string
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
        pending = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            while node and char not in next_[node]:
                node = fail[node]
            node = next_[node].get(char, 0)
            match = found[node]
            if match is not None:
                self.matched, self._held, self._node = match, "", 0
                self.rest = pending[end:]
                return pending[: end - len(match)], True
        self._node = node
        cut = len(pending) - depth[node]
        self._held = pending[cut:]
        return pending[:cut], False

    @property
    def n_held(self) -> int:
        """Number of characters held back."""
        return len(self._held)

    def flush(self) -> str:
        """The text held back, at the end of the input."""
        held, self._held, self._node = self._held, "", 0
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
