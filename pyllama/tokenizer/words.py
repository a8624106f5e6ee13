"""What all encoders are: a way to cut text into words, and a cached way to encode one word.

    class Letters(WordEncoder):
        def split(self, text): return list(text)
        def encode_word(self, word): return (ord(word),)

The cache holds a bounded number of words of bounded length; threads may share an encoder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache

CACHED_WORDS = 1 << 15
CACHED_CHARS = 64


class WordEncoder(ABC):
    """Encodes text word by word; the words of a text do not influence each other."""

    def __init__(self) -> None:
        self._cached = lru_cache(CACHED_WORDS)(self.encode_word)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text without special tokens."""
        cached, encode_word = self._cached, self.encode_word
        ids: list[int] = []
        for word in self.split(text):
            ids += cached(word) if len(word) <= CACHED_CHARS else encode_word(word)
        return ids

    @abstractmethod
    def split(self, text: str) -> list[str]:
        """Cut a text into the words that `encode_word` takes."""

    @abstractmethod
    def encode_word(self, word: str) -> tuple[int, ...]:
        """Token ids of one word."""
