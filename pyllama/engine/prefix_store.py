"""Evaluated prompts in host memory, beyond the sequences of the context.

    engine = Engine(context, prefixes=PrefixStore(1 << 30))

A sequence is saved when its tokens are dropped, or, with ``save_idle``, when another text begins.
The least recently used are dropped when the store is full. Restoring costs a copy of the keys and
values, and gives the bits of the first evaluation.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import StateError
from ..runtime.adapters import AdapterUses, n_alike
from ..runtime.context import Context
from ..runtime.state import Bytes, dump_state, restore_state
from .request import Ids
from .sequence import UNKNOWN, CacheSequence, n_common

_log = logging.getLogger("pyllama.server")
_MIN_TOKENS = 16  # fewer are evaluated as fast as they are restored


@dataclass(eq=False)
class _Saved:
    """The tokens and the saved state of a sequence, and the adapters of its tokens."""

    tokens: Ids
    adapters: AdapterUses
    parts: list[Bytes]

    @property
    def n_bytes(self) -> int:
        """Bytes of the state."""
        return sum(part.nbytes for part in self.parts)


class PrefixStore:
    """Saved sequences, least recently used first. For the thread that steps.

    Args:
        max_bytes: maximum bytes of all states.
        save_idle: save idle sequences when a text begins, and clear them if sequences share cells.

    Attributes:
        n_bytes: bytes of all states.

    Source: llama.cpp, ``server_prompt_cache``.
    """

    def __init__(self, max_bytes: int, *, save_idle: bool = False) -> None:
        self.max_bytes, self.save_idle, self.n_bytes = max_bytes, save_idle, 0
        self._saved: dict[_Saved, None] = {}  # in the order of their last use
        self._beginning: dict[bytes, list[_Saved]] = {}  # by their first tokens

    def __len__(self) -> int:
        return len(self._saved)

    def save(self, sequence: CacheSequence) -> bool:
        """Save a sequence; False if it is short, shifted, reduced, too large, or saved already."""
        tokens, context = sequence.tokens(), sequence.context
        if len(tokens) < _MIN_TOKENS or sequence.n_unshifted < len(tokens) or UNKNOWN in tokens:
            return False
        if context.kv.reduced(sequence.seq_id):  # these tokens are no prefix of another text
            return False
        adapters = sequence.adapters
        related = [s for s in self._beginning.get(_key(tokens), ()) if s.adapters == adapters]
        for saved in related:
            if n_common(tokens, saved.tokens) == len(tokens):
                self._use(saved)
                return False
        parts = dump_state(context, seq=sequence.seq_id, adapters="")
        made = _Saved(tokens, adapters, parts)
        if made.n_bytes > self.max_bytes:
            return False
        for old in related:  # of which these tokens are a continuation
            if n_common(old.tokens, tokens) == len(old.tokens):
                self._remove(old)
        self._saved[made] = None
        self._beginning.setdefault(_key(tokens), []).append(made)
        self.n_bytes += made.n_bytes
        while self.n_bytes > self.max_bytes:
            self._remove(next(iter(self._saved)))
        return True

    def save_unused(self, sequences: Sequence[CacheSequence], context: Context) -> None:
        """Save idle sequences before a text begins in another, and clear them if cells are shared.

        Logs the tag that llama.cpp's tests look for.
        """
        for sequence in sequences:
            if not sequence.n_tokens:
                continue
            if self.save(sequence):
                _log.debug("saved sequence %d: __TEST_TAG_CACHE_IDLE_SLOT__", sequence.seq_id)
            if context.kv.unified:
                sequence.clear()

    def longest(self, tokens: Ids, adapters: AdapterUses) -> tuple[_Saved | None, int]:
        """The saved sequence with the longest common prefix with ``tokens``, and its length."""
        best, length = None, 0
        for saved in self._beginning.get(_key(tokens), ()):
            n = min(n_common(saved.tokens, tokens[:-1]), n_alike(saved.adapters, adapters))
            if n > length:
                best, length = saved, n
        return best, length

    def restore(self, saved: _Saved, sequence: CacheSequence) -> bool:
        """Put a saved state into a sequence; False if there are too few cells."""
        _log.debug("updating prompt cache: %d tokens are restored", len(saved.tokens))
        data = b"".join(part.tobytes() for part in saved.parts)
        try:
            restore_state(sequence.context, data, seq=sequence.seq_id, adapters="")
        except StateError:
            sequence.clear()
            return False
        sequence.adopt(saved.tokens)
        sequence.n_forgotten, sequence.adapters = 0, saved.adapters
        if saved in self._saved:
            self._use(saved)
        return True

    def _use(self, saved: _Saved) -> None:
        """Make a state the most recently used."""
        del self._saved[saved]
        self._saved[saved] = None

    def _remove(self, saved: _Saved) -> None:
        del self._saved[saved]
        key = _key(saved.tokens)
        self._beginning[key].remove(saved)
        if not self._beginning[key]:
            del self._beginning[key]
        self.n_bytes -= saved.n_bytes


def drop_oldest(idle: Sequence[CacheSequence], prefixes: PrefixStore | None) -> bool:
    """Free the cells of the sequence that was used least recently; False if all are empty."""
    held = [sequence for sequence in idle if sequence.n_tokens]
    if held:
        oldest = min(held, key=lambda sequence: sequence.last_used)
        if prefixes is not None:
            prefixes.save(oldest)
        oldest.clear()
    return bool(held)


def _key(tokens: Ids) -> bytes:
    """The first tokens: a state that shares fewer is not worth its copy."""
    return tokens[:_MIN_TOKENS].tobytes()
