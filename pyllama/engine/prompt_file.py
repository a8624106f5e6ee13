"""A file with an evaluated prompt, which later runs load instead of evaluating it again.

    file = PromptFile("x.cache")
    file.load(lease)                               # a run then evaluates only the other tokens
    ...
    file.save(lease)

Source: llama.cpp, ``--prompt-cache`` of llama-completion.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..runtime.state import load_state, save_state
from .lease import Lease
from .sequence import n_common


class PromptFile:
    """A prompt cache file.

    Attributes:
        tokens: tokens of the loaded or saved state.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.tokens: list[int] = []

    def load(self, lease: Lease) -> None:
        """Load the file into a sequence; does nothing if it is missing or empty.

        Replaces the whole cache of the context.

        Raises:
            StateError, OSError: see ``load_state``.
        """
        if self.path.exists() and (self.path.stat().st_size or not self.path.is_file()):
            self.tokens = load_state(lease.context, self.path)
            n = min(len(self.tokens), lease.context.kv.seq_pos_max(0) + 1)
            lease.adopt(self.tokens[:n] if n <= len(lease.ids) else ())
            lease.truncate()

    def matching(self, tokens: Sequence[int]) -> int:
        """Length of the common prefix of ``tokens`` and the file."""
        return n_common(self.tokens, tokens)

    def save(self, lease: Lease) -> None:
        """Write the tokens and cache of a sequence. Raises: OSError."""
        lease.truncate()
        self.tokens = lease.tokens
        save_state(lease.context, self.path, self.tokens)
