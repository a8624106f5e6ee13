"""Cuts text at special tokens.

    cutter = SpecialCutter(vocab)
    cutter.cut("<s>Hi</s>", parse_special=True)     # [1, 'Hi', 2]

The longest token is matched first, wherever it is, as in llama.cpp. (A single regular expression
would match the leftmost first, which differs where special tokens overlap.)
"""

from __future__ import annotations

from collections.abc import Iterator

from .special import CONTROL, UNKNOWN, USER_DEFINED
from .vocab import Vocab

_WHITE = " \t\n\v\f\r"
# Special tokens share few prefixes (such as "<|re" of reserved ones). These are searched for first,
# so that text without special tokens costs a few scans, not hundreds.
_HEAD = 4


class SpecialCutter:
    """Finds special tokens in text.

    Source: llama.cpp, ``llama_vocab::impl::tokenizer_st_partition``.
    """

    def __init__(self, vocab: Vocab) -> None:
        tokens, types = vocab.tokens, vocab.types
        special = [
            i
            for i, kind in enumerate(types)
            if kind in (CONTROL, UNKNOWN, USER_DEFINED) and vocab.ids[tokens[i]] == i
        ]
        special.sort(key=lambda i: -len(tokens[i].encode("utf-8", "surrogateescape")))
        self._all = [(tokens[i], i) for i in special]
        self._user_defined = [(tokens[i], i) for i in special if types[i] == USER_DEFINED]
        self._heads = {text[:_HEAD] for text, _ in self._all}
        self._lstrip, self._rstrip = vocab.lstrip, vocab.rstrip

    def cut(self, text: str, parse_special: bool) -> list[str | int]:
        """The text as a list of special token ids and of the strings between them.

        Args:
            text: the text.
            parse_special: parse control and unknown tokens too, not only user-defined ones.
        """
        pieces: list[str | int] = [text] if text else []
        heads = {head for head in self._heads if head in text}
        for token_text, token in self._all if parse_special else self._user_defined:
            if token_text[:_HEAD] in heads and token_text in text:
                pieces = [
                    part
                    for piece in pieces
                    for part in (
                        self._cut_at(piece, token_text, token)
                        if isinstance(piece, str)
                        else (piece,)
                    )
                ]
        return pieces

    def _cut_at(self, text: str, token_text: str, token: int) -> Iterator[str | int]:
        parts = text.split(token_text)
        for i, part in enumerate(parts):
            if i and token in self._rstrip:
                part = part.lstrip(_WHITE)
            if i < len(parts) - 1 and token in self._lstrip:
                part = part.rstrip(_WHITE)
            if i:
                yield token
            if part:
                yield part
