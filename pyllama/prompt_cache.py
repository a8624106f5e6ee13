"""A file that remembers an evaluated prompt, so that the next run need not evaluate it again.

    cache = PromptCache("x.cache")
    n_past = cache.load(context, tokens)           # tokens that need no evaluation
    ...                                            # evaluate tokens[n_past:]
    cache.save(context, tokens)

Source: llama.cpp, ``--prompt-cache`` of llama-completion.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .state import load_state, save_state

if TYPE_CHECKING:
    from .context import Context


class PromptCache:
    """One file.

    Attributes:
        tokens: what the file holds.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.tokens: list[int] = []

    def load(self, context: Context, tokens: Sequence[int]) -> int:
        """Put what the file holds into sequence 0, as far as ``tokens`` begin with it.

        A file that is missing or empty holds nothing.

        Returns:
            Tokens that are there; one at least is left to be evaluated, for its logits.

        Raises:
            StateError, OSError: see ``load_state``.
        """
        self.load_all(context)
        return context.kv.rewind(0, min(self.matching(tokens), len(tokens) - 1))

    def load_all(self, context: Context) -> list[int]:
        """Put all that the file holds into sequence 0; its tokens. Raises: as `load`."""
        if self.path.exists() and (self.path.stat().st_size or not self.path.is_file()):
            self.tokens = load_state(context, self.path)
        return self.tokens

    def matching(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens`` the file holds, from the first on."""
        n = 0
        while n < min(len(self.tokens), len(tokens)) and self.tokens[n] == tokens[n]:
            n += 1
        return n

    def save(self, context: Context, tokens: Sequence[int]) -> None:
        """Keep sequence 0, which holds ``tokens``. Raises: OSError."""
        save_state(context, self.path, tokens, seq=None)
        self.tokens = list(tokens)
