"""Where a text's recurrent state is kept, so that another text can go on from there.

    run.checkpoints = prompt_checkpoints(context, run.tokens)

A recurrent state cannot forget tokens, so a text that differs from the one before it can only go on
from a state that was kept: one at each beginning of a message, since people change a message and
not the middle of one, and one before the last token of a prompt, whose logits another text may
need. Beside these, `StateCache` keeps one every so many tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..tokenizer.special import CONTROL
from ..tokenizer.vocab import Vocab

if TYPE_CHECKING:
    from .context import Context


def prompt_checkpoints(context: Context, tokens: Sequence[int]) -> list[int]:
    """The checkpoints of a prompt by a context's parameters; none where they are not needed."""
    if not context.kv.has_checkpoints:
        return []
    return checkpoint_positions(tokens, context.model.tokenizer.vocab, context.params.n_checkpoints)


def checkpoint_positions(tokens: Sequence[int], vocab: Vocab, n_max: int) -> list[int]:
    """The numbers of leading tokens of a prompt after which the state is kept, ascending.

    A message begins at a control token after a text, or after a token that ends a text.

    Args:
        n_max: the most positions; those of the last messages count.
    """
    types, n = vocab.types, len(tokens)
    begins = [
        i
        for i in range(1, n)
        if _is(types, tokens[i]) and tokens[i] not in vocab.eog
        and (not _is(types, tokens[i - 1]) or tokens[i - 1] in vocab.eog)
    ]  # fmt: skip
    found = sorted({*begins[-max(n_max - 1, 0) :], n - 1} - {0})
    return found[-n_max:] if n_max else []


def _is(types: Sequence[int], token: int) -> bool:
    """Whether a token is a control token."""
    return token < len(types) and types[token] == CONTROL
