"""The tokens that a context holds, with the logits that scripts of llama-cpp-python look at.

    state = Evaluated(context, logits_all=False, timings=Timings())
    state.catch_up([1, 15043, 3186])               # evaluates what is not there yet
    state.scores[state.n_tokens - 1].argmax()

``n_tokens`` is the truth: the cache may hold more, after an interrupt or when a caller lowered it,
and is cut before the next evaluation. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pyggml.errors import AllocError

from .batch import Batch
from .context import Context
from .errors import BatchError, ContextFull
from .generate import forget_half
from .timings import Timings

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intc]


class Evaluated:
    """Sequence 0 of a context.

    Args:
        context: no one else may use its sequence 0.
        logits_all: keep the logits of every token.
        timings: counts the decodes.
        on_reuse: told how many tokens `catch_up` keeps, and how many it evaluates.

    Attributes:
        n_tokens: tokens evaluated; lower it to forget the last ones.
        n_forgotten: tokens that context shifts took out of the middle.
        input_ids: int32[n_ctx_seq], of which the first ``n_tokens`` count.
        holder: whoever's tokens these are; None after anybody else's.
    """

    def __init__(
        self,
        context: Context,
        *,
        logits_all: bool,
        timings: Timings,
        on_reuse: Callable[[int, int], None] | None = None,
    ) -> None:
        self.context, self.logits_all, self.timings = context, logits_all, timings
        self.on_reuse = on_reuse
        self.n_tokens = self.n_forgotten = 0
        self.holder: object = None
        self.input_ids: Ids = np.zeros(context.n_ctx_seq, np.intc)
        self._scores: Floats | None = None
        self._unsaved_row: int | None = None  # of scores: the context still has its logits

    @property
    def scores(self) -> Floats:
        """float32[n_ctx_seq, n_vocab]: the logits after each token, where they were kept.

        Memory is taken for filled rows only.

        Raises:
            AllocError: so large an array cannot even be reserved.
        """
        if self._scores is None:
            shape = (self.context.n_ctx_seq, self.context.model.hparams.n_vocab)
            try:
                self._scores = np.zeros(shape, np.float32)
            except MemoryError:
                raise AllocError(
                    f"scores of {shape[0]} x {shape[1]} float32 need "
                    f"{4 * shape[0] * shape[1] / 2**30:.1f} GiB; use a smaller n_ctx"
                ) from None
        if self._unsaved_row is not None:
            self._scores[self._unsaved_row] = self.context.logits_ith(-1)
            self._unsaved_row = None
        return self._scores

    def ids(self) -> Ids:
        """A copy of the tokens evaluated."""
        return self.input_ids[: self.n_tokens].copy()

    def row(self, position: int) -> Floats:
        """Logits after the token at a position.

        Raises:
            BatchError: there is no such token, or its logits were not kept.
        """
        if not 0 <= position < self.n_tokens:
            raise BatchError(
                f"logits after token {position}: {self.n_tokens} tokens are evaluated; eval() first"
            )
        row: Floats = self.scores[position]
        if not row.any():
            raise BatchError(
                f"the logits after token {position} were not kept; evaluate it again, "
                "or create Llama(..., logits_all=True)"
            )
        return row

    def evaluate(self, tokens: Sequence[int]) -> None:
        """Put tokens behind those that are there.

        Raises:
            ContextFull: they do not fit; nothing has changed then.
            BatchError: an unknown token.
            Aborted: it was stopped; whole batches that were finished count.
        """
        context = self.context
        n_wanted = self.n_tokens + len(tokens)
        if n_wanted > context.n_ctx_seq:
            raise ContextFull(
                f"{len(tokens)} tokens behind {self.n_tokens} do not fit into a context of "
                f"{context.n_ctx_seq}; use n_ctx={n_wanted} or more, or reset()"
            )
        if context.kv.seq_pos_max(0) + 1 != self.n_tokens:
            context.kv.seq_rm(0, self.n_tokens, -1)
        for start in range(0, len(tokens), context.n_batch):
            part = tokens[start : start + context.n_batch]
            is_last = start + len(part) == len(tokens)
            wanted = "all" if self.logits_all else "last" if is_last else "none"
            self._unsaved_row = None
            if len(part) == 1 and wanted == "last":
                self.timings.decode_token(context, part[0])
            else:
                self.timings.decode(context, Batch(part, logits=wanted))
            first, self.n_tokens = self.n_tokens, self.n_tokens + len(part)
            self.input_ids[first : self.n_tokens] = part
            if self.logits_all:
                self.scores[first : self.n_tokens] = context.logits
            elif is_last:
                self._unsaved_row = self.n_tokens - 1

    def catch_up(self, ids: Sequence[int]) -> None:
        """Evaluate ``ids``, as far as they are not there; the last one always, for its logits.

        Raises:
            As `evaluate`.
        """
        self.holder = None
        n_kept = self._keep(ids)
        if n_kept and self.on_reuse is not None:
            self.on_reuse(n_kept, len(ids) - n_kept)
        self.evaluate(ids[n_kept:])

    def _keep(self, ids: Sequence[int]) -> int:
        """Forget what is not the beginning of ``ids``, or is all of it; how many tokens stay."""
        n = min(self.n_tokens, len(ids) - 1)
        differ = np.flatnonzero(self.input_ids[:n] != np.array(ids[:n], np.int64))
        # a sliding window may not have kept enough to go back there
        self.n_tokens = self.context.kv.rewind(0, int(differ[0]) if differ.size else n)
        return self.n_tokens

    def adopt(self, tokens: Sequence[int]) -> None:
        """Take note that the context holds these tokens, such as those of a loaded state."""
        self.holder, self.n_tokens, self._unsaved_row = None, len(tokens), None
        self.input_ids[: len(tokens)] = tokens

    def make_room(self, ids: list[int], n_keep: int, n_last: int = 0) -> None:
        """Take tokens out of ``ids`` until the context can hold them (context shift).

        Half of what the context holds of them behind the first ``n_keep`` goes and the rest moves
        up; where it holds no more than these, half of all. The ``n_last`` last ones stay. Logits
        of before count no more.

        Raises:
            ContextFull: there is nothing that may go.
        """
        while len(ids) > self.context.n_ctx_seq:
            held = min(self._keep(ids), len(ids) - n_last)
            if held - n_keep >= 2:
                n = forget_half(self.context.kv, 0, held, n_keep)
                self.n_tokens -= n
                self.input_ids[n_keep : self.n_tokens] = self.input_ids[n_keep + n :][
                    : self.n_tokens - n_keep
                ]
            else:
                n = (len(ids) - n_last - n_keep + 1) // 2
                if n < 1 or n_keep >= self.context.n_ctx_seq:
                    raise ContextFull(
                        f"all {n_keep} tokens to keep fill the context of "
                        f"{self.context.n_ctx_seq}; use a smaller --keep or a larger context"
                    )
            del ids[n_keep : n_keep + n]
            self.n_forgotten += n
            self._unsaved_row = None
