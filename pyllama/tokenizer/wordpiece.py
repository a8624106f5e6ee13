"""WordPiece, the tokenizer of BERT: normalized words, then greedy longest match.

    WordPiece(vocab).encode("Hello, world")

U+2581 marks the beginning of a word; llama.cpp's converter adds it and removes BERT's "##", which
marks continuations. Construction scans the tokens; encoding is a pure function.
"""

from __future__ import annotations

import unicodedata

from ..errors import TokenizerError
from .boundaries import SPACE
from .characters import WHITE, CharacterMap
from .match import KeyMatcher
from .vocab import Vocab
from .words import WordEncoder

# Blocks of CJK ideographs; the block at 2B920 is as in `tokenizers` and llama.cpp.
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)

_MAX_CHARS = 100  # longer words are unknown


class WordPiece(WordEncoder):
    """Encoder of a "bert" vocabulary.

    Source: the ``tokenizers`` library, ``BertNormalizer`` and ``WordPiece``; llama.cpp,
    ``llm_tokenizer_wpm_session``, which takes longer words, and the first part of a syllable only.
    """

    def __init__(self, vocab: Vocab) -> None:
        super().__init__()
        self._matcher = KeyMatcher(vocab.ids)
        self._unk = vocab.roles.get("unk")
        self._lowercase, self._strip_accents = vocab.lowercase, vocab.strip_accents
        self._clean = CharacterMap(self._clean_character)

    def split(self, text: str, begins: bool) -> list[str]:
        """Normalized words with the marker; every punctuation mark is a word."""
        return [SPACE + word for word in text.translate(self._clean).split(" ") if word]

    def encode_piece(self, piece: str) -> list[int]:
        """Token ids of one word: all of its tokens, or the unknown token."""
        ids: list[int] = []
        end = 0
        while end < len(piece):
            fits = len(piece) <= len(SPACE) + _MAX_CHARS
            found = self._matcher.longest(piece, end) if fits else None
            if found is None:
                if self._unk is None:
                    raise TokenizerError(
                        f"{piece!r} cannot be encoded: the vocabulary has neither tokens for it "
                        "nor an unknown token"
                    )
                return [self._unk]
            end, token = found
            ids.append(token)
        return ids

    def _clean_character(self, char: str) -> str:
        if char in "\0\v\f\x85\ufffd":
            return ""
        if char in WHITE:
            return " "
        if unicodedata.category(char) in ("Cc", "Cf", "Co", "Cs"):
            return ""
        code, text = ord(char), char
        if self._strip_accents:
            parts = unicodedata.normalize("NFD", char)  # several of a Hangul syllable
            text = "".join(part for part in parts if unicodedata.category(part) != "Mn")
        if self._lowercase:
            text = text.lower()
        text = "".join(f" {part} " if _is_punctuation(part) else part for part in text)
        return f" {text} " if any(first <= code <= last for first, last in _IDEOGRAPHS) else text


def _is_punctuation(char: str) -> bool:
    category = unicodedata.category(char)
    return category[0] == "P" or (category[0] == "S" and char.isascii())
