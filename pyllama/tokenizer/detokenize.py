"""Converts token ids to bytes and text; a stream yields only whole characters.

    stream = TokenStream(tokenizer)
    "".join(map(stream.push, ids)) + stream.flush()

A stream holds back at most three bytes.
"""

from __future__ import annotations

import re
from codecs import utf_8_decode
from contextlib import suppress
from typing import Protocol

from .boundaries import SPACE
from .bpe import BYTE_OF_CHAR
from .rwkv import unescape
from .special import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from .vocab import Vocab

_CLEANING = (
    (re.compile(r" (?=[?!.,])"), ""),
    (re.compile(" ' "), "'"),
    (re.compile(" (?='(?:[sm]|re|ve))"), ""),
)


def clean(text: str) -> str:
    """Remove the spaces before punctuation and English contractions.

    Source: llama.cpp, ``llama_vocab::impl::detokenize``.
    """
    for pattern, replacement in _CLEANING:
        text = pattern.sub(replacement, text)
    return text


def token_bytes(vocab: Vocab, token: int) -> bytes:
    """The bytes of a token, with the text of special tokens.

    Source: llama.cpp, ``llama_vocab::impl::token_to_piece``.
    """
    text, kind = vocab.tokens[token], vocab.types[token]
    if vocab.model == "rwkv":
        return unescape(text)
    if kind == BYTE:
        return _byte_token(text)
    if kind == NORMAL and vocab.pre is not None and vocab.pre.byte_level:
        # characters outside the alphabet occur only in badly converted files
        return b"".join(
            bytes((BYTE_OF_CHAR[char],)) if char in BYTE_OF_CHAR else _utf8(char) for char in text
        )
    if kind == NORMAL:
        return _utf8(text if vocab.model == "plamo2" else text.replace(SPACE, " "))
    return _utf8(text) if kind in (CONTROL, UNKNOWN, USER_DEFINED) else b""


def _byte_token(text: str) -> bytes:
    try:
        return bytes((int(text[3:5], 16),))
    except ValueError:
        return _utf8(text)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class Pieces(Protocol):
    """The part of a tokenizer that a stream uses."""

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        """Bytes of one token."""

    def texts(self, special: bool | frozenset[int] = False) -> Texts:
        """The texts of tokens, for streams."""
        return Texts(self, special)


class Texts(dict[int, str | bytes]):
    """The text of each token, or its bytes if they are no whole characters; found when needed.

    Args:
        tokenizer: gives the bytes of tokens.
        special: include the text of special tokens: of all, or of these ids.
    """

    def __init__(self, tokenizer: Pieces, special: bool | frozenset[int]) -> None:
        super().__init__()
        self._tokenizer, self._special = tokenizer, special

    def __missing__(self, token: int) -> str | bytes:
        special = self._special if isinstance(self._special, bool) else token in self._special
        piece = self._tokenizer.token_to_piece(token, special)
        text: str | bytes = piece
        with suppress(UnicodeDecodeError):
            text = piece.decode()
        self[token] = text
        return text


class TokenStream:
    """Decodes tokens to text incrementally; holds back incomplete characters.

    Args:
        tokenizer, special: see `Texts`.

    Attributes:
        partial: the bytes of an incomplete character.
    """

    def __init__(self, tokenizer: Pieces, special: bool | frozenset[int] = False) -> None:
        self._texts, self.partial = tokenizer.texts(special), b""

    def push(self, token: int) -> str:
        """The characters that this token completes; U+FFFD for invalid bytes.

        Raises:
            TokenizerError: the vocabulary has no such token.
        """
        piece = self._texts[token]
        if isinstance(piece, str):
            if not self.partial:
                return piece
            piece = piece.encode()
        piece = self.partial + piece
        text, n = utf_8_decode(piece, "replace", False)
        self.partial = piece[n:]
        return text

    def flush(self) -> str:
        """U+FFFD if a character is incomplete, else an empty string; resets the stream."""
        rest, self.partial = self.partial.decode("utf-8", "replace"), b""
        return rest
