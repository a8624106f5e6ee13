"""The tokens in one sequence of a context: prefixes, forks, context shifts.

    sequence = CacheSequence(context, 0)
    n = sequence.keep(tokens)                      # length of the common prefix
    context.decode(Batch(tokens[n:]))
    sequence.append(tokens[n:])

Attributes and the KV cache agree except within an `Engine`'s decode. Not thread-safe.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ContextFull
from ..runtime.adapters import AdapterUses, n_alike, shifted, uses_of
from .request import Floats, Ids

if TYPE_CHECKING:
    from ..runtime.context import Context

UNKNOWN = -1
"""Stands for a token that was evaluated before the engine existed."""
LAST = [-1]
"""The last output of a decode, see `CacheSequence.last_outputs`."""


class CacheSequence:
    """One sequence of a context.

    Args:
        context: the context; nothing else may use this sequence.
        seq_id: id of the sequence; tokens that it already holds are `UNKNOWN`.

    Attributes:
        ids: int32[n_ctx_seq], of which the cache holds the first ``n_tokens``.
        id_items: the same memory; cheaper for a single token.
        n_unshifted: leading tokens with the bits of a fresh evaluation, before a context shift.
        n_forgotten: tokens removed by context shifts.
        owner: key of the text whose tokens it holds, or None.
        leased: whether a `Lease` holds it.
        on_logits: called with the index of the first token of a chunk, and the chunk's logits.
        last_used: number of the last step that used it.
        last_outputs: outputs of the context's last decode that are the logits of its last tokens;
            None after the context evaluated another sequence.
        n_at_outputs: its number of tokens at that decode.
        adapters: the adapters, and their factors, that its tokens were computed with; of an empty
            sequence, the context's own.
    """

    __slots__ = (
        "adapters", "context", "id_items", "ids", "last_outputs", "last_used", "leased",
        "n_at_outputs", "n_forgotten", "n_tokens", "n_unshifted", "on_logits", "owner", "seq_id",
    )  # fmt: skip

    def __init__(self, context: Context, seq_id: int) -> None:
        self.context, self.seq_id = context, seq_id
        self.ids: Ids = np.zeros(context.n_ctx_seq, np.intc)
        self.id_items = self.ids.data
        self.n_tokens = min(context.kv.seq_pos_max(seq_id) + 1, context.n_ctx_seq)
        self.ids[: self.n_tokens] = UNKNOWN
        self.n_unshifted = sys.maxsize
        self.n_forgotten = self.last_used = 0
        self.owner: object = None
        self.leased = False
        self.on_logits: Callable[[int, Floats], None] | None = None
        self.last_outputs: list[int] | None = None
        self.n_at_outputs = 0
        self.adapters = uses_of(context.applied, ())

    @property
    def n_text(self) -> int:
        """Number of its leading tokens that an encoder has read, see `TextRun`."""
        return self.context.kv.encoded(self.seq_id)

    @property
    def n_reduced(self) -> int:
        """Number of its tokens that have no cells any more, since it was reduced."""
        kv = self.context.kv
        return self.n_tokens - kv.length(self.seq_id) if kv.reduced(self.seq_id) else 0

    def tokens(self) -> Ids:
        """A copy of the tokens in the cache."""
        return self.ids[: self.n_tokens].copy()

    def adopt(self, tokens: Sequence[int] | Ids) -> None:
        """Declare that the cache holds these tokens."""
        self.n_tokens, self.last_outputs = len(tokens), None
        self.ids[: self.n_tokens] = tokens
        self._check_unshifted()

    def scales(self, n: int) -> Floats | None:
        """The factors of the adapters for the next ``n`` tokens; None if the context has none.

        Raises:
            BatchError: an adapter is not loaded any more.
        """
        context = self.context
        if not self.n_tokens and self.owner is None:
            self.adapters = uses_of(context.applied, ())
        if not context.adapters and not self.adapters:
            return None
        rows = np.zeros((n, len(context.adapters)), np.float32)
        for adapter, scale, first in self.adapters:
            rows[max(0, first - self.n_tokens) :] += context.scales({adapter: scale})
        return rows

    def append(self, tokens: Sequence[int]) -> None:
        """Declare that the cache holds these tokens after the others."""
        first, self.n_tokens = self.n_tokens, self.n_tokens + len(tokens)
        self.ids[first : self.n_tokens] = tokens

    def truncate(self, n: int | None = None) -> None:
        """Remove all but the first ``n`` tokens (None: ``n_tokens``) from the cache.

        More are removed where a recurrent state cannot go back to there.
        """
        n, held = self.n_tokens if n is None else n, self.context.kv.seq_pos_max(self.seq_id) + 1
        self.n_tokens = n if held == n else self.context.kv.rewind(self.seq_id, n)
        self._check_unshifted()

    def clear(self) -> None:
        """Remove all tokens."""
        self.n_forgotten = 0
        self.truncate(0)

    def n_shared(self, tokens: Sequence[int] | Ids, adapters: AdapterUses | None = None) -> int:
        """Length of the common prefix with ``tokens``, without the last ones, at least one.

        Args:
            adapters: those of ``tokens``; None for those of the sequence.
        """
        n = self.n_tokens if adapters is None else n_alike(self.adapters, adapters)
        left = len(tokens) - self.context.kv.n_recomputed(self.seq_id)
        return n_common(self.ids[: max(0, min(self.n_tokens, n, left))], tokens)

    def n_reusable(self, tokens: Sequence[int] | Ids, adapters: AdapterUses) -> int:
        """The tokens of `n_shared` after which the cache can go on."""
        return self.context.kv.resume(self.seq_id, self.n_shared(tokens, adapters))

    def keep(self, tokens: Sequence[int], adapters: AdapterUses | None = None) -> int:
        """Remove all but the common prefix with ``tokens``; returns its length.

        The last of ``tokens`` is never kept, so that evaluating it gives logits.

        Args:
            adapters: those of ``tokens`` and of what follows; None for those of the sequence.
        """
        n = self.n_shared(tokens, adapters)
        self.adapters = self.adapters if adapters is None else adapters
        # less if a sliding window has evicted entries that the next token needs, or if there is no
        # recurrent state
        self.n_tokens = self.context.kv.rewind(self.seq_id, n)
        self._check_unshifted()
        return self.n_tokens

    def fork(self, source: CacheSequence, n: int) -> None:
        """Replace the tokens by the first ``n`` of another sequence, sharing its cells.

        Raises:
            ContextFull: sequences do not share cells, and this one has too few.
        """
        self.clear()
        self.context.kv.seq_cp(source.seq_id, self.seq_id, 0, n)
        self.adopt(source.ids[: self.context.kv.rewind(self.seq_id, n)])  # evicted entries return
        self.adapters = source.adapters
        self.n_unshifted = sys.maxsize if n <= source.n_unshifted else source.n_unshifted

    def make_room(self, tokens: list[int], n_keep: int, n_last: int = 0, n_discard: int = 0) -> int:
        """Remove some of ``tokens`` after the first ``n_keep`` (context shift).

        Removes ``n_discard`` or half of the cached tokens after ``n_keep``, and rotates the keys of
        the rest to their new positions. If none are cached there, removes half of all. The last
        ``n_last`` tokens stay.

        Returns:
            The number of tokens removed, at index ``n_keep``.

        Raises:
            ContextFull: no token may be removed.
        """
        n_ctx, kv, self.last_outputs = self.context.n_ctx_seq, self.context.kv, None
        held = min(self.keep(tokens), len(tokens) - n_last)
        self.truncate(held)
        n = min(n_discard, held - n_keep - 1) if n_discard else (held - n_keep) // 2
        if n >= 1:
            kv.seq_rm(self.seq_id, n_keep, n_keep + n)
            try:
                kv.seq_add(self.seq_id, n_keep + n, -1, -n)
                self.ids[n_keep : held - n] = self.ids[n_keep + n : held].copy()
                self.n_tokens = held - n
                self.n_unshifted = min(self.n_unshifted, n_keep)
            except ContextFull:  # other sequences need the keys, and no cells are free for copies
                self.truncate(n_keep)
        else:
            n = (len(tokens) - n_last - n_keep + 1) // 2
        if n < 1 or n_keep > n_ctx - 2:
            raise ContextFull(
                f"all {n_keep} tokens to keep fill the context of {n_ctx}; "
                "use a smaller `n_keep` or a larger `n_ctx`"
            )
        del tokens[n_keep : n_keep + n]
        self.adapters = shifted(self.adapters, n_keep, n)
        self.n_forgotten += n
        return n

    def _check_unshifted(self) -> None:
        if self.n_tokens <= self.n_unshifted:
            self.n_unshifted = sys.maxsize


def n_common(a: Sequence[int] | Ids, b: Sequence[int] | Ids) -> int:
    """Length of the common prefix of two token lists."""
    n = min(len(a), len(b))
    if not n or a[0] != b[0]:  # most prefixes of others
        return 0
    # as bytes: to compare arrays releases the GIL
    bytes_a, bytes_b = (np.asarray(one[:n], np.intc).tobytes() for one in (a, b))
    size, low, high = len(bytes_a) // n, 1, n + 1  # they differ before ``high``, if at all
    while high - low > 1:
        middle = (low + high) // 2
        part = slice(low * size, middle * size)
        if bytes_a[part] == bytes_b[part]:
            low = middle
        else:
            high = middle
    return low
