"""The intermediate form of a vocabulary during conversion."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

MAX_TOKENS = 1 << 19  # twice the largest known vocabulary; a damaged id must not fill the memory


class FileToken(NamedTuple):
    """A token; ``type`` is a constant of ``tokenizer.special``."""

    text: str
    type: int
    score: float = 0.0


@dataclass
class FileVocabulary:
    """The content of a tokenizer's file.

    Attributes:
        model: "llama" (SPM), "gpt2" (byte-level BPE), "bert" (WordPiece), "t5" (Unigram) or "rwkv".
        tokens: by id; there may be gaps.
        pre: name of the pre-tokenizer (BPE).
        merges: merges "a b" in order of priority (BPE).
        roles: ids of bos, eos, ... named in the file.
        add_space_prefix: whether a text is prefixed by a space (SPM); None: unknown.
        added: ids of added tokens.
        add_bos: whether BOS is added to a text; None: unknown.
        more: values of other keys, without ``tokenizer.ggml.``.
    """

    model: str
    tokens: dict[int, FileToken]
    pre: str | None = None
    merges: list[str] = field(default_factory=list)
    roles: dict[str, int] = field(default_factory=dict)
    add_space_prefix: bool | None = None
    added: set[int] = field(default_factory=set)
    add_bos: bool | None = None
    more: dict[str, Any] = field(default_factory=dict)
