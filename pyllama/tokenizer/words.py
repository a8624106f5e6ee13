"""What all encoders are: a way to cut text into words, and a remembered way to encode one.

    class Letters(WordEncoder):
        def split(self, text, begins): return list(text)
        def encode_piece(self, piece): return (ord(piece),)

What is remembered is a bounded number of words of bounded length; threads may share an encoder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

KEPT_WORDS = 1 << 15
KEPT_CHARS = 64

T = TypeVar("T")


class Memo(dict[str, T]):
    """Results of a pure function of a string; begins afresh when it is full.

    A dictionary, since looking up what is known then stays in C: ``map(memo.__getitem__, words)``.
    """

    def __init__(self, function: Callable[[str], T]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, word: str) -> T:
        result = self._function(word)
        if len(word) <= KEPT_CHARS:
            if len(self) >= KEPT_WORDS:
                self.clear()
            self[word] = result
        return result


class WordEncoder(ABC):
    """Encodes text word by word; the words of a text do not influence each other.

    So it is with the pieces of a word, if an encoder can cut its words further.
    """

    def __init__(self) -> None:
        self._words = Memo(self._encode_word)
        self._pieces = Memo(self.encode_piece)

    def encode(self, text: str, begins: bool = True) -> list[int]:
        """Token ids of a text without special tokens.

        Args:
            text: What to encode.
            begins: It stands first or behind a special token, where SPM puts a space.
        """
        words = self.split(text, begins)
        return list(chain.from_iterable(map(self._words.__getitem__, words)))

    def _encode_word(self, word: str) -> Sequence[int]:
        pieces = self.cut(word)
        if len(pieces) == 1:
            return self.encode_piece(word)
        return tuple(chain.from_iterable(map(self._pieces.__getitem__, pieces)))

    @abstractmethod
    def split(self, text: str, begins: bool) -> list[str]:
        """Cut a text into words."""

    def cut(self, word: str) -> list[str]:
        """Cut a word into the pieces that `encode_piece` takes."""
        return [word]

    @abstractmethod
    def encode_piece(self, piece: str) -> Sequence[int]:
        """Token ids of one piece."""
