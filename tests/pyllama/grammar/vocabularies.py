"""Small vocabularies for tests of grammars."""

from __future__ import annotations

from typing import Any, cast

from pyllama.tokenizer import Tokenizer


class Words:
    """A tokenizer whose tokens are given texts, and then end-of-generation and control tokens.

    Args:
        texts: bytes of each token.
        n_control: number of control tokens.
    """

    def __init__(self, texts: list[bytes], n_control: int = 1) -> None:
        self.texts = [*texts, b"", *[b""] * n_control]
        self.n_vocab = len(self.texts)
        self.eog = frozenset({len(texts)})

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        control = f"<|{token}|>".encode() if special and not self.texts[token] else b""
        return self.texts[token] or control

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The longest tokens first, or the control token with this text."""
        pieces = [self.token_to_piece(t, special=parse_special) for t in range(self.n_vocab)]
        order = sorted(range(self.n_vocab), key=lambda t: -len(pieces[t]))
        ids, rest = [], text.encode()
        while rest:
            token = next(t for t in order if pieces[t] and rest.startswith(pieces[t]))
            ids.append(token)
            rest = rest[len(pieces[token]) :]
        return ids


def words(texts: list[bytes], n_control: int = 1) -> Tokenizer:
    """`Words` as a tokenizer."""
    return cast(Tokenizer, cast(Any, Words(texts, n_control)))


def allowed(mask: Any) -> set[int]:
    """The tokens of a mask."""
    return {i for i in range(32 * len(mask)) if mask[i >> 5] >> (i & 31) & 1}
