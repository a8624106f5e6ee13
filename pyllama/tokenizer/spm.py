"""SentencePiece's BPE: merges characters in the order of the scores of the resulting tokens.

    SPM(vocab).encode(" Hello world")

Construction scans the tokens; encoding is a pure function.
"""

from __future__ import annotations

import re

import numpy as np

from ..errors import TokenizerError
from .boundaries import SPACE, Joints, word_pattern
from .merge import merge
from .vocab import Vocab
from .words import WordEncoder


class SPM(WordEncoder):
    """Encoder of a "llama" vocabulary.

    Source: llama.cpp, ``llm_tokenizer_spm_session``.
    """

    def __init__(self, vocab: Vocab) -> None:
        super().__init__()
        self._ids = vocab.ids
        _, ranks = np.unique(-np.asarray(vocab.scores), return_inverse=True)
        # equal scores have equal ranks; of equal texts the last token is used, as in `ids`
        self._ranks: dict[str, int] = dict(zip(vocab.tokens, ranks.tolist(), strict=True))
        self._unk = vocab.roles.get("unk")
        self._find_words = re.compile(word_pattern(vocab.tokens)).findall
        self._joints = Joints(vocab.tokens)
        self._prefix = " " if vocab.add_space_prefix else ""

    def split(self, text: str, begins: bool) -> list[str]:
        """Words with the spaces before them."""
        if begins:
            text = self._prefix + text
        return self._find_words(text.replace(" ", SPACE))

    def cut(self, word: str) -> list[str]:
        return self._joints.cut(word)

    def encode_piece(self, piece: str) -> list[int]:
        ids: list[int] = []
        for symbol in merge(list(piece), self._ranks, ""):
            token = self._ids.get(symbol)
            ids += self._spell(symbol) if token is None else (token,)
        return ids

    def _spell(self, symbol: str) -> list[int]:
        """Byte tokens of a character that is not a token, or the unknown token."""
        get = self._ids.get
        found = [token for b in symbol.encode() if (token := get(f"<0x{b:02X}>")) is not None]
        if len(found) == len(symbol.encode()):
            return found
        if self._unk is None:
            raise TokenizerError(
                f"{symbol!r} cannot be encoded: the vocabulary has neither tokens for its bytes "
                "nor an unknown token"
            )
        return [self._unk]
