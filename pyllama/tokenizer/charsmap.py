"""SentencePiece's precompiled normalization rules.

    charsmap = Charsmap(metadata["tokenizer.ggml.precompiled_charsmap"].tobytes())
    charsmap.normalize("Ａ①")                   # 'A1'

The rules stay packed (250,000 in 200 KB) and are looked up on demand. Results for short runs of
characters are cached.
"""

from __future__ import annotations

import re

import numpy as np

from ..errors import TokenizerError
from .metadata import PREFIX
from .words import Memo

_N_ASCII = 128
# runs of non-ASCII characters with the character before them, which a rule may include
_BEYOND_ASCII = re.compile(r"([\x00-\x7f]?[^\x00-\x7f]+)")
_HAS_VALUE, _IS_VALUE = 1 << 8, 1 << 31


class Charsmap:
    """Normalization rules; the longest matching rule is applied.

    Args:
        packed: SentencePiece's format: length of the trie, trie, NUL-terminated replacements.
            Empty for no rules.

    Raises:
        TokenizerError: the data is damaged.

    Source: llama.cpp, ``llm_tokenizer_ugm``; S. Kanda et al., XOR-compressed double arrays.
    """

    def __init__(self, packed: bytes) -> None:
        self._nodes, self._texts = _read(packed)
        self._known = Memo(self._rewrite)
        # Fast path for ASCII text, valid if no rule spans two ASCII characters.
        codes = range(1, _N_ASCII) if self._nodes else ()
        self._ascii = {code: self._rewrite(chr(code)) for code in codes}
        self._has_shortcut = not any(map(self._goes_on_in_ascii, codes))

    def normalize(self, text: str) -> str:
        """The text with the rules applied once, from left to right.

        Raises:
            TokenizerError: a rule is damaged.
        """
        if not self._nodes:
            return text
        if not self._has_shortcut:
            return self._rewrite(text)
        parts = _BEYOND_ASCII.split(text)
        parts[::2] = [part.translate(self._ascii) for part in parts[::2]]
        parts[1::2] = map(self._known.__getitem__, parts[1::2])
        return "".join(parts)

    def _rewrite(self, text: str) -> str:
        data = text.encode()
        parts: list[bytes] = []
        start = 0
        while start < len(data):
            end, found = self._longest(data, start)
            if end == start:  # no rule: keep the character
                end = start + 1
                while end < len(data) and data[end] & 0xC0 == 0x80:
                    end += 1
                found = data[start:end]
            parts.append(found)
            start = end
        return b"".join(parts).decode("utf-8", "replace")

    def _longest(self, data: bytes, start: int) -> tuple[int, bytes]:
        """End and replacement of the longest rule at ``start``; (start, empty) if none matches."""
        end, value = start, 0
        at = self._base(0)
        for i in range(start, len(data)):
            at ^= data[i]
            node = self._node(at)
            if data[i] == 0 or node & (_IS_VALUE | 0xFF) != data[i]:
                break
            at ^= self._base(at)
            if node & _HAS_VALUE:
                end, value = i + 1, self._node(at) & ~_IS_VALUE
        return end, self._replacement(value) if end > start else b""

    def _replacement(self, offset: int) -> bytes:
        end = self._texts.find(b"\0", offset)
        if offset >= len(self._texts) or end < 0:
            raise _damaged(f"a replacement at byte {offset} is outside of {len(self._texts)} bytes")
        return self._texts[offset:end]

    def _goes_on_in_ascii(self, code: int) -> bool:
        """Whether a rule begins with this character and another ASCII character."""
        at = self._base(0) ^ code
        if self._node(at) & (_IS_VALUE | 0xFF) != code:
            return False
        at ^= self._base(at)
        following = (self._node(at ^ byte) & (_IS_VALUE | 0xFF) for byte in range(1, _N_ASCII))
        return any(label == byte for byte, label in enumerate(following, 1))

    def _base(self, at: int) -> int:
        """The offset of a node's children, XORed with its own index."""
        node = self._node(at)
        return (node >> 10) << ((node & 1 << 9) >> 6)

    def _node(self, at: int) -> int:
        if at >= len(self._nodes):
            raise _damaged(f"its trie of {len(self._nodes)} nodes points to node {at}")
        return self._nodes[at]


def _read(packed: bytes) -> tuple[list[int], bytes]:
    """Nodes of the trie, and the replacements."""
    if not packed:
        return [], b""
    n_bytes = int.from_bytes(packed[:4], "little")
    if not 4 <= n_bytes < len(packed) - 4:
        raise _damaged(f"a trie of {n_bytes} bytes does not fit into {len(packed)} bytes")
    nodes = np.frombuffer(packed, "<u4", n_bytes // 4, offset=4)
    return nodes.tolist(), packed[4 + n_bytes :]


def _damaged(what: str) -> TokenizerError:
    return TokenizerError(f"{PREFIX}precompiled_charsmap is damaged: {what}")
