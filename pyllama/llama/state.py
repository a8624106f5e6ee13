"""The state of a `Llama` as an object that can be pickled and restored.

    state = llama.save_state()
    llama("something else")
    llama.load_state(state)                        # continues from the saved state

Source: llama-cpp-python, ``LlamaState``, ``Llama.save_state``, ``Llama.load_state``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyggml.errors import AllocError

from ..engine import Lease
from ..engine.request import Floats, Ids
from ..errors import BatchError, StateError
from ..runtime.state import dump_state, restore_state


@dataclass
class LlamaState:
    """Tokens, logits and KV cache.

    Attributes:
        input_ids: int32[n_ctx], of which the first ``n_tokens`` are valid.
        scores: float32[n_tokens, n_vocab]; all rows with ``logits_all``, else the last one.
        llama_state: keys and values, see `pyllama.runtime.state`.
        llama_state_size: size of ``llama_state`` in bytes.
        seed: seed of sampling.
    """

    input_ids: Ids
    scores: Floats
    n_tokens: int
    llama_state: bytes
    llama_state_size: int
    seed: int


class Scores:
    """The stored logits of the tokens of a sequence.

    Args:
        lease: the sequence.
        logits_all: store the logits of all tokens; else those of the last one when ``rows`` is
            read.
    """

    def __init__(self, lease: Lease, *, logits_all: bool) -> None:
        self.lease, self.logits_all = lease, logits_all
        self._rows: Floats | None = None
        if logits_all:
            lease.on_logits(self._keep)

    @property
    def rows(self) -> Floats:
        """Logits float32[n_ctx, n_vocab]; the system commits memory for written rows only.

        Raises:
            AllocError: the address space cannot be reserved.
        """
        rows = self._all()
        last = self.lease.last_logits
        if last is not None and not self.logits_all:
            rows[last[0]] = last[1]
        return rows

    def after(self, position: int) -> Floats:
        """Logits of the token at a position.

        Raises:
            BatchError: there is no such token, or its logits were not stored.
        """
        if not 0 <= position < self.lease.n_tokens:
            raise BatchError(
                f"logits after token {position}: {self.lease.n_tokens} tokens are evaluated; "
                "eval() first"
            )
        row: Floats = self.rows[position]
        if not row.any():
            raise BatchError(
                f"the logits after token {position} were not stored; evaluate it again, "
                "or create Llama(..., logits_all=True)"
            )
        return row

    def _keep(self, first: int, logits: Floats) -> None:
        self._all()[first : first + len(logits)] = logits

    def _all(self) -> Floats:
        if self._rows is None:
            context = self.lease.context
            shape = (context.n_ctx_seq, context.model.hparams.n_vocab)
            try:
                self._rows = np.zeros(shape, np.float32)
            except MemoryError:
                raise AllocError(
                    f"scores of {shape[0]} x {shape[1]} float32 need "
                    f"{4 * shape[0] * shape[1] / 2**30:.1f} GiB; use a smaller `n_ctx`"
                ) from None
        return self._rows


def copy_state(scores: Scores, seed: int) -> LlamaState:
    """A copy of the state of a sequence, which must be the only one of its context."""
    lease, rows = scores.lease, scores.rows
    n = lease.n_tokens
    if scores.logits_all:
        kept = rows[:n].copy()
    else:
        kept = np.zeros((n, rows.shape[1]), np.float32)  # rows take memory once they are filled
        kept[-1:] = rows[max(n - 1, 0) : n]
    lease.truncate()
    memory = b"".join(part.tobytes() for part in dump_state(lease.context))
    return LlamaState(lease.ids.copy(), kept, n, memory, len(memory), seed)


def restore_llama_state(scores: Scores, state: LlamaState) -> None:
    """Restore a saved state; the context may have another size if the tokens fit.

    Raises:
        StateError: the state is of another model or cache type, damaged, or too large. Nothing has
            changed.
    """
    lease, rows, n = scores.lease, scores.rows, state.n_tokens
    if n > len(lease.ids):  # the smaller cache of a sliding window might still accept them
        raise StateError(
            f"LlamaState: {n} tokens do not fit into a context of {len(lease.ids)}; "
            f"use `n_ctx={n}` or more"
        )
    restore_state(lease.context, state.llama_state, name="LlamaState")
    lease.adopt(state.input_ids[:n])
    if scores.logits_all:
        rows[:n] = state.scores
    else:
        rows[max(n - 1, 0) : n] = state.scores[-1:]
