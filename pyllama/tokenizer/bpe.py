"""Byte-pair encoding: pre-tokenize, spell words in GPT-2's byte alphabet, merge by rank.

    BPE(vocab).encode("Hello world")

Building compiles the regular expressions and the table of ranks, some tens of milliseconds;
encoding is pure.
"""

from __future__ import annotations

from .merge import merge
from .pretokenize import split
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


class BPE(WordEncoder):
    """Encoder of a "gpt2" or "gemma4" vocabulary.

    Source: llama.cpp, ``llm_tokenizer_bpe_session``.
    """

    def __init__(self, vocab: Vocab) -> None:
        super().__init__()
        # `regex` takes a while to import and a process that only decodes never needs it
        import regex

        pre = vocab.pre
        assert pre is not None
        self._ids = vocab.ids
        self._byte_level = pre.byte_level
        self._ignore_merges = pre.ignore_merges
        n = len(vocab.merges)
        # reversed, so that of equal merges the first one's rank stays
        self._ranks = dict(zip(reversed(vocab.merges), range(n - 1, -1, -1), strict=True))
        patterns = [regex.compile(f"({text})") for text in pre.regexes]
        # Up to its main (longest) regex a list is applied to the text. What comes after it only
        # cuts single words further, so it can hide behind the cache of words.
        main = max(range(len(patterns)), key=lambda i: len(pre.regexes[i]))
        self._cut_text, self._cut_word = patterns[: main + 1], patterns[main + 1 :]

    def split(self, text: str) -> list[str]:
        """Words of a text, in its own spelling."""
        return split(text if self._byte_level else text.replace(" ", "\u2581"), self._cut_text)

    def encode_word(self, word: str) -> tuple[int, ...]:
        """Token ids of one word."""
        ids: list[int] = []
        for piece in split(word, self._cut_word):
            ids += self._encode_piece(piece)
        return tuple(ids)

    def _encode_piece(self, piece: str) -> list[int]:
        if self._byte_level:
            piece = piece.encode().decode("latin-1").translate(CHAR_OF_BYTE)
            whole = self._ignore_merges
        else:
            whole = not piece.strip("\n")
        if whole and piece in self._ids:
            return [self._ids[piece]]
        ids: list[int] = []
        for symbol in merge(list(piece), self._ranks, " "):
            token = self._ids.get(symbol)
            ids += self._spell(symbol) if token is None else (token,)
        return ids

    def _spell(self, symbol: str) -> list[int]:
        """Tokens of the bytes of a symbol that is no token; bytes without a token are dropped."""
        get = self._ids.get
        if self._byte_level:
            found = [get(char) for char in symbol if char.isascii()]
        else:
            found = [get(f"<0x{byte:02X}>") for byte in symbol.encode()]
        return [token for token in found if token is not None]
