"""Finds the tokens that match a text at a position.

    matcher = Matcher({"a": 0, "ab": 1, "b": 2})
    matcher.at("cab", 1)        # [(3, 1), (2, 0)]: ends and values, longest first

Tries only the lengths of tokens with the same first character. Uses little memory, unlike a trie of
250,000 tokens in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import AnyStr, Generic, TypeVar

V = TypeVar("V")


class KeyMatcher(Generic[AnyStr, V]):
    """Finds keys of a mapping in text.

    Args:
        values: value by key; keys must not be empty.
    """

    def __init__(self, values: Mapping[AnyStr, V]) -> None:
        lengths: dict[AnyStr, set[int]] = {}
        for key in values:
            lengths.setdefault(key[:1], set()).add(len(key))
        self._values: Mapping[AnyStr, V] = values
        self._lengths: dict[AnyStr, list[int]] = {
            first: sorted(found, reverse=True) for first, found in lengths.items()
        }

    def at(self, text: AnyStr, start: int) -> list[tuple[int, V]]:
        """(end, value) of every key that matches at ``start``, longest first."""
        get, last = self._values.get, len(text)
        return [
            (end, value)
            for n in self._lengths.get(text[start : start + 1], ())
            if (end := start + n) <= last and (value := get(text[start:end])) is not None
        ]

    def longest(self, text: AnyStr, start: int) -> tuple[int, V] | None:
        """(end, value) of the longest key that matches at ``start``, or None."""
        get, last = self._values.get, len(text)
        for n in self._lengths.get(text[start : start + 1], ()):
            if (end := start + n) <= last and (value := get(text[start:end])) is not None:
                return end, value
        return None
