"""The base class of encoders: cut text into words, and encode words with a cache.

    class Letters(WordEncoder):
        def split(self, text, begins): return list(text)
        def encode_piece(self, piece): return (ord(piece),)

The cache has a bounded number of words of bounded length. Threads may share an encoder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

from ..errors import TokenizerError

KEPT_WORDS = 1 << 15
KEPT_CHARS = 64

T = TypeVar("T")


class Memo(dict[str, T]):
    """A cache of a pure function of a string; is cleared when it is full.

    A subclass of dict, so that ``map(memo.__getitem__, words)`` runs in C for cached words.
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
    """Encodes words independently of each other.

    An encoder may also cut words into pieces, which are encoded independently too.
    """

    def __init__(self) -> None:
        self._words = Memo(self._encode_word)
        self._pieces = Memo(self.encode_piece)

    def encode(self, text: str, begins: bool = True) -> list[int]:
        """Token ids of a text without special tokens.

        Args:
            text: the text.
            begins: whether it is at the start or after a special token, where SPM adds a space.
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
        """Cut a word into pieces for `encode_piece`."""
        return [word]

    @abstractmethod
    def encode_piece(self, piece: str) -> Sequence[int]:
        """Token ids of one piece."""


class NoEncoder(WordEncoder):
    """The encoder of a model without a vocabulary, which only refuses."""

    def __init__(self, vocab: object) -> None:
        super().__init__()

    def split(self, text: str, begins: bool) -> list[str]:
        """Raises: TokenizerError."""
        raise TokenizerError("this model has no vocabulary: it takes token ids, not text")

    def encode_piece(self, piece: str) -> Sequence[int]:
        """Not called."""
        raise NotImplementedError
