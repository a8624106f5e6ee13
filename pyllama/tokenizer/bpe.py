"""Byte-pair encoding: pre-tokenize, map bytes to GPT-2's alphabet, merge by rank.

    BPE(vocab).encode("Hello world")

Construction compiles the regular expressions and the table of ranks, in tens of milliseconds.
Encoding is a pure function.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .boundaries import SPACE, Joints, word_pattern
from .characters import LOWER, WHITE
from .merge import merge
from .pretokenizers import Cutter, word_cutters
from .vocab import Vocab
from .words import WordEncoder


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable character for each byte: itself where printable, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(0x100 + i) for i, byte in enumerate(others)
    }


CHAR_OF_BYTE = _byte_alphabet()
BYTE_OF_CHAR = {char: byte for byte, char in CHAR_OF_BYTE.items()}
_LINE_WITHOUT_SPACE = re.compile(f"(?:^|(?<=\n))(?=[^\n{SPACE}])")


class BPE(WordEncoder):
    """Encoder of a "gpt2", "gemma4" or "whitespace" vocabulary.

    Source: llama.cpp, ``llm_tokenizer_bpe_session``.
    """

    def __init__(self, vocab: Vocab) -> None:
        super().__init__()
        pre = vocab.pre
        assert pre is not None
        self._pre = pre
        self._ids = vocab.ids
        self._lowercase = vocab.lowercase and pre.drop_spaces
        self._cut_word: Callable[[str], list[str]]
        n = len(vocab.merges)
        # reversed, so that the first of equal merges determines the rank
        self._ranks = dict(zip(reversed(vocab.merges), range(n - 1, -1, -1), strict=True))
        if pre.byte_level:
            self._cut_text, self._cut_word = word_cutters(pre.regexes)
        else:
            merged = [merge.replace(" ", "") for merge in vocab.merges]
            self._cut_text = Cutter((*pre.regexes, word_pattern(merged)))
            # a run of newlines may be a token that is not the result of a merge
            self._cut_word = Joints([*merged, "\n\n"]).cut

    def split(self, text: str, begins: bool) -> list[str]:
        """The words of a text, as written there."""
        pre = self._pre
        if pre.drop_spaces:
            text = text.translate(LOWER) if self._lowercase else text
            return [word for word in self._cut_text(text) if word.strip(WHITE)]
        if not pre.byte_level:
            text = text.replace(" ", SPACE)
        if pre.prefix_lines:
            text = _LINE_WITHOUT_SPACE.sub(SPACE, text)
        return self._cut_text(text)

    def cut(self, word: str) -> list[str]:
        return self._cut_word(word)

    def encode_piece(self, piece: str) -> list[int]:
        pre, ids = self._pre, self._ids
        if pre.byte_level:
            piece = piece.encode().decode("latin-1").translate(CHAR_OF_BYTE)
        whole = pre.ignore_merges or (pre.whole_newlines and not piece.strip("\n"))
        if whole and piece in ids:
            return [ids[piece]]
        found: list[int] = []
        for symbol in merge(list(piece), self._ranks, " "):
            token = ids.get(symbol)
            found += self._spell(symbol) if token is None else (token,)
        return found

    def _spell(self, symbol: str) -> list[int]:
        """Byte tokens of a symbol that is not a token; bytes without a token are dropped."""
        get = self._ids.get
        if self._pre.byte_level:
            found = [get(char) for char in symbol if char.isascii()]
        else:
            found = [get(f"<0x{byte:02X}>") for byte in symbol.encode()]
        return [token for token in found if token is not None]
