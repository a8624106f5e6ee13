"""Unigram language model, the tokenizer of T5: the most probable tokenization of a text.

    UGM(vocab).encode("Hello world")

Construction scans the tokens and unpacks the normalization rules; encoding is a pure function.
"""

from __future__ import annotations

import re

from ..errors import TokenizerError
from .boundaries import SPACE, Joints, word_pattern
from .charsmap import Charsmap
from .match import KeyMatcher
from .special import NORMAL, UNUSED, USER_DEFINED
from .vocab import Vocab
from .words import WordEncoder

_PENALTY = 10.0  # of an unknown character, below the least probable token


class UGM(WordEncoder):
    """Encoder of a "t5" vocabulary.

    Raises:
        TokenizerError: the normalization rules are damaged.

    Source: llama.cpp, ``llm_tokenizer_ugm_session``. One difference: llama.cpp does not normalize
    text at a prefix of a user-defined token.
    """

    def __init__(self, vocab: Vocab) -> None:
        super().__init__()
        types, tokens = vocab.types, vocab.tokens
        usable = {
            text: token
            for text, token in vocab.ids.items()
            if types[token] in (NORMAL, USER_DEFINED, UNUSED)
        }
        self._matcher = KeyMatcher(usable)
        self._scores = [
            0.0 if kind == USER_DEFINED else score
            for score, kind in zip(vocab.scores, types, strict=True)
        ]
        normal = [vocab.scores[token] for token in range(len(tokens)) if types[token] == NORMAL]
        self._unk = vocab.roles.get("unk")
        self._unk_score = min(normal, default=0.0) - _PENALTY
        self._add_space_prefix, self._merge_spaces = vocab.add_space_prefix, vocab.merge_spaces
        self._charsmap = Charsmap(vocab.charsmap)
        self._find_words = re.compile(word_pattern(usable)).findall
        self._joints = Joints(usable)

    def encode(self, text: str, begins: bool = True) -> list[int]:
        """`WordEncoder.encode`, with adjacent unknown tokens merged into one."""
        ids = super().encode(text, begins)
        if self._unk in ids:
            twice = (ids[i] == self._unk == ids[i - 1] for i in range(1, len(ids)))
            return ids[:1] + [token for token, drop in zip(ids[1:], twice, strict=True) if not drop]
        return ids

    def split(self, text: str, begins: bool) -> list[str]:
        """Normalized words with the spaces before them."""
        text = self._charsmap.normalize(text)
        if self._merge_spaces:
            text = "".join(SPACE + word for word in text.split(" ") if word)
        else:
            prefix = SPACE if self._add_space_prefix and text.strip(" ") else ""
            text = prefix + text.replace(" ", SPACE)
        return self._find_words(text)

    def cut(self, word: str) -> list[str]:
        return self._joints.cut(word)

    def encode_piece(self, piece: str) -> list[int]:
        """Token ids of one piece: the path of highest score; the first found of equal ones."""
        scores = [0.0] + [-float("inf")] * len(piece)
        path: list[tuple[int, int | None]] = [(0, None)] * (len(piece) + 1)  # (start, token)
        for start in range(len(piece)):
            has_token = False
            for end, token in self._matcher.at(piece, start):
                has_token = has_token or end == start + 1
                score = scores[start] + self._scores[token]
                if score > scores[end]:
                    scores[end], path[end] = score, (start, token)
            if not has_token and scores[start] + self._unk_score > scores[start + 1]:
                scores[start + 1] = scores[start] + self._unk_score
                path[start + 1] = (start, self._unk)
        ids: list[int] = []
        end = len(piece)
        while end:
            end, token_or_none = path[end]
            if token_or_none is None:
                raise TokenizerError(
                    f"{piece!r} cannot be encoded: the vocabulary has neither tokens for it nor an "
                    "unknown token"
                )
            ids.append(token_or_none)
        return ids[::-1]
