"""A file that keeps an evaluated prompt, so that the next run need not evaluate it again.

    file = PromptFile("x.cache")
    file.load(lease)                               # what the file has; a run evaluates the rest
    ...
    file.save(lease)

Source: llama.cpp, ``--prompt-cache`` of llama-completion.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..core.state import load_state, save_state
from .lease import Lease
from .sequence import n_common


class PromptFile:
    """One file.

    Attributes:
        tokens: those that the file holds.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.tokens: list[int] = []

    def load(self, lease: Lease) -> None:
        """Put all that the file holds into a sequence; a missing or empty file holds nothing.

        The context of the sequence holds nothing else afterwards.

        Raises:
            StateError, OSError: see ``load_state``.
        """
        if self.path.exists() and (self.path.stat().st_size or not self.path.is_file()):
            self.tokens = load_state(lease.context, self.path)
            n = min(len(self.tokens), lease.context.kv.seq_pos_max(0) + 1)
            lease.adopt(self.tokens[:n] if n <= len(lease.ids) else ())
            lease.truncate()

    def matching(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens`` the file holds, from the first on."""
        return n_common(self.tokens, tokens)

    def save(self, lease: Lease) -> None:
        """Keep what a sequence holds. Raises: OSError."""
        lease.truncate()
        self.tokens = lease.tokens
        save_state(lease.context, self.path, self.tokens)
