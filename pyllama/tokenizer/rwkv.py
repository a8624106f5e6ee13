r"""RWKV's World tokenizer: greedy longest match on bytes.

    RWKV(vocab).encode("Hello")
    unescape(r"\xe4\n")             # b'\xe4\n': tokens are bytes, stored with escapes

Construction scans the tokens; encoding is a pure function.
"""

from __future__ import annotations

import re

from ..errors import TokenizerError
from .match import KeyMatcher
from .vocab import Vocab
from .words import WordEncoder

_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_NAMED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def unescape(text: str) -> bytes:
    """The bytes of a token in the vocabulary's escaped form."""
    return _ESCAPE.sub(_replace, text.encode("utf-8", "surrogateescape"))


def _replace(match: re.Match[bytes]) -> bytes:
    code, char = match.groups()
    return bytes.fromhex(code.decode()) if code is not None else _NAMED.get(char, char)


class RWKV(WordEncoder):
    """Encoder of a "rwkv" vocabulary.

    Source: llama.cpp, ``llm_tokenizer_rwkv_session``.
    """

    def __init__(self, vocab: Vocab) -> None:
        super().__init__()
        keys = map(unescape, vocab.tokens)
        self._matcher = KeyMatcher({key: token for token, key in enumerate(keys) if key})
        self._unk = vocab.roles.get("unk")

    def split(self, text: str, begins: bool) -> list[str]:
        """The whole text, since tokens may span words."""
        return [text]

    def encode_piece(self, piece: str) -> list[int]:
        ids: list[int] = []
        data = piece.encode()
        end = 0
        while end < len(data):
            found = self._matcher.longest(data, end) or (end + 1, self._unk)
            end, token = found
            if token is None:
                raise TokenizerError(
                    f"byte {data[end - 1]:#04x} cannot be encoded: the vocabulary has neither a "
                    "token for it nor an unknown token"
                )
            ids.append(token)
        return ids
