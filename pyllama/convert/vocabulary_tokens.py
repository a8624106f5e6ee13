"""A vocabulary while it is converted: tokens by id, and what is known of the tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

MAX_TOKENS = 1 << 19  # twice the largest vocabularies: a damaged id must not fill the memory


class Token(NamedTuple):
    """A token; the type is one of ``tokenizer.special``."""

    text: str
    type: int
    score: float = 0.0


@dataclass
class Vocabulary:
    """What a tokenizer's file says.

    Attributes:
        model: "llama" (SPM) or "gpt2" (byte-level BPE).
        tokens: by id; there may be gaps.
        pre: name of the pre-tokenizer, of BPE.
        merges: of BPE, "a b", the best first.
        roles: ids of bos, eos, ... that the file itself names.
        add_space_prefix: whether SPM puts a space before a text; None: not said.
        added: ids of tokens that were added to the model's own.
    """

    model: str
    tokens: dict[int, Token]
    pre: str | None = None
    merges: list[str] = field(default_factory=list)
    roles: dict[str, int] = field(default_factory=dict)
    add_space_prefix: bool | None = None
    added: set[int] = field(default_factory=set)
