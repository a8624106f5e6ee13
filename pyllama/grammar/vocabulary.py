"""A tokenizer's tokens as prefix trees of bytes, made once per tokenizer.

    vocabulary = Vocabulary.of(tokenizer)
    vocabulary.text(1234)           # b" the", b"" for a control token

Tokens whose text is of plain characters only (no control characters, quotes, backslashes or parts
of characters) are in groups by their number of characters: in most places of a JSON text all of a
group are allowed or none, and a group has a bit set. Before the end of a bounded string those up to
a number of characters are allowed. All others are in one more tree.

End-of-generation and control tokens have no text, so they are in no tree. Immutable.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numba import types
from numpy.typing import NDArray

from pyggml.compiler.jit import jitted
from pyggml.compiler.pointers import i32_ptr, i64_ptr, u8_ptr

from ..tokenizer import Tokenizer
from .lazy_dfa import MAX_FREE, UNBOUNDED

_NOT_PLAIN = re.compile(r'["\\\x00-\x1f\x7f]')
_GROUPS = (4, 8, MAX_FREE, UNBOUNDED)  # most characters of the groups of plain tokens


class TokenTree(NamedTuple):
    """Tokens as a prefix tree in depth-first order.

    Attributes:
        nodes: int32[n, 4]: index after the subtree; byte + 256 * depth; token or -1; unused.
        max_chars: number of plain characters that all its tokens have at most; 0 for other tokens.
        bits: uint32[n_words], the bit set of its tokens.
    """

    nodes: NDArray[np.int32]
    max_chars: int
    bits: NDArray[np.uint32]


class TokenTexts:
    """The texts of a tokenizer's tokens.

    Attributes:
        n_vocab: number of tokens.
        n_words: number of words of 32 bits for a bit per token.
        trees: prefix trees of all tokens with a text.
        plain_bits: the bit set of the plain tokens of at most i characters, for i up to MAX_FREE.
        eog: ids of the end-of-generation tokens, ascending.
        eog_bits: their bit set.
        max_length: bytes of the longest token.
        kept: the last grammars' masks, by text and root.
    """

    _known: ClassVar[WeakKeyDictionary[Tokenizer, TokenTexts]] = WeakKeyDictionary()

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.n_vocab = tokenizer.n_vocab
        self.kept: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self.n_words = (self.n_vocab + 31) // 32
        self.eog = tuple(sorted(tokenizer.eog))
        self.eog_bits = self.bits(self.eog)
        self._texts = [tokenizer.token_to_piece(token) for token in range(self.n_vocab)]
        for token in self.eog:
            self._texts[token] = b""
        self.max_length = max(map(len, self._texts), default=0)
        groups: list[list[int]] = [[] for _ in range(len(_GROUPS) + 1)]
        by_length: list[list[int]] = [[] for _ in range(MAX_FREE + 1)]
        for token, text in enumerate(self._texts):
            n_chars = _plain_chars(text)
            if text:
                groups[bisect_left(_GROUPS, n_chars) if n_chars else -1].append(token)
            if 0 < n_chars <= MAX_FREE:
                by_length[n_chars].append(token)
        self.plain_bits = np.bitwise_or.accumulate([self.bits(tokens) for tokens in by_length])
        limits = (*_GROUPS, 0)
        self.trees = tuple(
            TokenTree(self._tree(tokens), limit, self.bits(tokens))
            for tokens, limit in zip(groups, limits, strict=True)
            if tokens
        )
        lengths = np.array([len(text) for text in self._texts], np.int64)
        self._bytes = np.frombuffer(b"".join(self._texts) or b"\0", np.uint8)
        self._address = self._bytes.ctypes.data
        ends = lengths.cumsum()
        self._spans = list(zip((ends - lengths).tolist(), lengths.tolist(), strict=True))

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenTexts:
        """The vocabulary of a tokenizer, made at the first call."""
        found = cls._known.get(tokenizer)
        if found is None:
            found = cls._known[tokenizer] = cls(tokenizer)
        return found

    def text(self, token: int) -> bytes:
        """The bytes of a token."""
        return self._texts[token]

    def span(self, token: int) -> tuple[int, int]:
        """Address and number of the bytes of a token."""
        start, length = self._spans[token]
        return self._address + start, length

    def bits(self, tokens: Iterable[int]) -> NDArray[np.uint32]:
        """The bit set of some tokens."""
        flags = np.zeros(32 * self.n_words, np.uint8)
        flags[list(tokens)] = 1
        return np.packbits(flags, bitorder="little").view(np.uint32)

    def _tree(self, tokens: list[int]) -> NDArray[np.int32]:
        texts = self._texts
        ordered = sorted(tokens, key=texts.__getitem__)
        joined = np.frombuffer(b"".join(texts[token] for token in ordered), np.uint8)
        ends = np.cumsum([len(texts[token]) for token in ordered])
        ids = np.array(ordered, np.int64)
        nodes = np.empty((joined.size, 4), np.int32)  # at most one per byte
        stack = np.empty(self.max_length + 1, np.int64)
        n = _build_tree(
            joined.ctypes.data, ends.ctypes.data, ids.ctypes.data, ids.size,
            nodes.ctypes.data, stack.ctypes.data,
        )  # fmt: skip
        return nodes[:n].copy()


def _plain_chars(text: bytes) -> int:
    """The number of characters of a token of plain characters, 0 of any other."""
    try:
        chars = text.decode()
    except UnicodeDecodeError:
        return 0
    return 0 if _NOT_PLAIN.search(chars) else min(len(chars), UNBOUNDED)


@jitted(types.int64(*[types.int64] * 6))
def _build_tree(texts, ends, tokens, n_tokens, nodes, stack):  # type: ignore[no-untyped-def]
    """Write the nodes of sorted texts; returns their number.

    A second token with an equal text is a second node with the same byte and depth, whose subtree
    is that of both.
    """
    texts, ends, tokens = u8_ptr(texts), i64_ptr(ends), i64_ptr(tokens)
    nodes, stack = i32_ptr(nodes), i64_ptr(stack)  # the open nodes by depth
    n, n_open, last = 0, 0, 0
    for i in range(n_tokens):
        first = 0 if i == 0 else ends[i - 1]
        length, common = ends[i] - first, 0
        while (
            common < n_open
            and common < length - 1
            and texts[first + common] == texts[last + common]
        ):
            common += 1
        while n_open > common:
            n_open -= 1
            nodes[4 * stack[n_open]] = n
        for depth in range(common, length):
            stack[n_open] = n
            n_open += 1
            nodes[4 * n + 1] = texts[first + depth] + 256 * depth
            nodes[4 * n + 2] = -1
            nodes[4 * n + 3] = 0
            n += 1
        nodes[4 * (n - 1) + 2] = tokens[i]
        last = first
    while n_open > 0:
        n_open -= 1
        nodes[4 * stack[n_open]] = n
    return np.int64(n)
