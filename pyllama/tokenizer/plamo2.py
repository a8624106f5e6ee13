"""PLaMo 2's tokenizer: the tokenization of lowest cost, with byte tokens as fallback.

    Plamo2(vocab).encode("Hello")

Construction scans the tokens; encoding is a pure function.
"""

from __future__ import annotations

import math

from ..errors import TokenizerError
from .match import KeyMatcher
from .special import BYTE, CONTROL, UNKNOWN
from .vocab import Vocab
from .words import WordEncoder

_UNIT = 1e4  # scores are compared as integers in units of 1 / _UNIT
_UNUSABLE, _UNKNOWN = -20_000_000, -10_000_000


class Plamo2(WordEncoder):
    """Encoder of a "plamo2" vocabulary.

    Raises:
        TokenizerError: a byte has no token.

    Source: llama.cpp, ``llm_tokenizer_plamo2``.
    """

    def __init__(self, vocab: Vocab) -> None:
        super().__init__()
        self._bytes = [vocab.ids.get(f"<0x{byte:02X}>", -1) for byte in range(256)]
        if -1 in self._bytes:
            raise TokenizerError(f"the vocabulary has no token <0x{self._bytes.index(-1):02X}>")
        self._costs = [-_whole(score) for score in vocab.scores]
        # llama.cpp would also match control tokens here, so a user's "<s>" would end a document
        excluded = (BYTE, CONTROL, UNKNOWN)
        self._matcher = KeyMatcher(
            {
                text: token
                for text, token in vocab.ids.items()
                if vocab.types[token] not in excluded and -self._costs[token] > _UNUSABLE
            }
        )

    def split(self, text: str, begins: bool) -> list[str]:
        """The whole text, since tokens may span words."""
        return [text.removeprefix("\ufeff")]

    def encode_piece(self, piece: str) -> list[int]:
        """Token ids of lowest total cost; of equal ones those with longer tokens first."""
        costs = [0] * (len(piece) + 1)
        path: list[tuple[int, int]] = [(0, -1)] * len(piece)  # (end, token) at each start
        for start in reversed(range(len(piece))):
            cost, found = math.inf, (start + 1, -1)
            for end, token in self._matcher.at(piece, start):
                if costs[end] + self._costs[token] < cost:
                    cost, found = costs[end] + self._costs[token], (end, token)
            if costs[start + 1] - _UNKNOWN < cost:
                cost, found = costs[start + 1] - _UNKNOWN, (start + 1, -1)
            costs[start], path[start] = int(cost), found
        ids: list[int] = []
        start = 0
        while start < len(piece):
            end, token = path[start]
            ids += [self._bytes[byte] for byte in piece[start].encode()] if token < 0 else [token]
            start = end
        return ids


def _whole(score: float) -> int:
    """A score in integer units, with halves rounded away from zero."""
    return int(math.copysign(math.floor(abs(score) * _UNIT + 0.5), score))
