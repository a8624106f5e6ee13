"""Token ids to bytes and text, whole or as a stream that never splits a character.

    stream = TokenStream(tokenizer)
    "".join(map(stream.push, ids)) + stream.flush()

A stream keeps at most three bytes back.
"""

from __future__ import annotations

import codecs
import re
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
    """A text without the spaces before punctuation and English endings.

    Source: llama.cpp, ``llama_vocab::impl::detokenize``.
    """
    for pattern, replacement in _CLEANING:
        text = pattern.sub(replacement, text)
    return text


def token_bytes(vocab: Vocab, token: int) -> bytes:
    """What a token stands for, special tokens spelt out.

    Source: llama.cpp, ``llama_vocab::impl::token_to_piece``.
    """
    text, kind = vocab.tokens[token], vocab.types[token]
    if vocab.model == "rwkv":
        return unescape(text)
    if kind == BYTE:
        return _byte_token(text)
    if kind == NORMAL and vocab.pre is not None and vocab.pre.byte_level:
        # a character outside the alphabet can only come from a careless converter
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
    """What a stream needs of a tokenizer."""

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        """Bytes of one token."""


class TokenStream:
    """Text of tokens as they come; an unfinished character waits for its next byte.

    Args:
        tokenizer: Where the tokens' bytes come from.
        special: Spell special tokens out instead of leaving them out.
    """

    def __init__(self, tokenizer: Pieces, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that this token completes; U+FFFD for bytes that can be no character.

        Raises:
            TokenizerError: The vocabulary has no such token.
        """
        return self._decoder.decode(self._tokenizer.token_to_piece(token, self._special))

    @property
    def waits(self) -> bool:
        """Whether a character is unfinished."""
        return bool(self._decoder.getstate()[0])

    def flush(self) -> str:
        """U+FFFD if a character was left unfinished, else nothing; the stream starts afresh."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
