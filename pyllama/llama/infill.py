"""Prompts that ask a model to fill the gap between two texts (infill, fill-in-the-middle).

infill_tokens(tokenizer, "def add(", "\\n    return total\\n")     # None: no tokens for it
"""

from __future__ import annotations

from ..tokenizer import Tokenizer

_ANCHOR = "☺"


def infill_tokens(
    tokenizer: Tokenizer, prefix: str | list[int], suffix: str, *, suffix_first: bool = False
) -> list[int] | None:
    """Tokens of a prompt with a gap; None if the vocabulary has no tokens for that.

    Args:
        prefix: text before the gap, or its tokens.
        suffix: text after it.
        suffix_first: write the suffix before the prefix, as some models were trained.

    Source: llama-cpp-python, ``Llama._create_completion``; version 0.3.36 has token 0 for all of
    them, here they are the model's.
    """
    roles = tokenizer.vocab.roles
    if not {"fim_pre", "fim_suf", "fim_mid"} <= roles.keys():
        return None
    if isinstance(prefix, str):
        prefix = tokenizer.encode(prefix, add_special=False)
    # The text before the suffix keeps a space from being added before it.
    n_anchor = len(tokenizer.encode(_ANCHOR, add_special=False))
    after = tokenizer.encode(_ANCHOR + suffix, add_special=False)[n_anchor:]
    parts = [roles["fim_pre"], *prefix], [roles["fim_suf"], *after]
    first, second = reversed(parts) if suffix_first else parts
    begin = tokenizer.vocab.begin
    return [*([] if begin is None else [begin]), *first, *second, roles["fim_mid"]]
