"""What a `Llama` holds, as an object that can be kept, pickled and put back.

    state = llama.save_state()
    llama("something else")
    llama.load_state(state)                        # goes on where it was

Source: llama-cpp-python, ``LlamaState``, ``Llama.save_state``, ``Llama.load_state``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .errors import StateError
from .evaluated import Evaluated, Floats, Ids
from .state import dump_state, restore_state


@dataclass
class LlamaState:
    """Tokens, logits, and the context's memory of them.

    Attributes:
        input_ids: int32[n_ctx], of which the first ``n_tokens`` count.
        scores: float32[n_tokens, n_vocab]; all rows with ``logits_all``, else the last one.
        llama_state: keys and values, see `pyllama.state`; llama_state_size: its bytes.
        seed: of what is sampled.
    """

    input_ids: Ids
    scores: Floats
    n_tokens: int
    llama_state: bytes
    llama_state_size: int
    seed: int


def take_state(held: Evaluated, seed: int) -> LlamaState:
    """A copy of what sequence 0 of a context holds."""
    n, scores = held.n_tokens, held.scores
    if held.logits_all:
        kept = scores[:n].copy()
    else:
        kept = np.zeros((n, scores.shape[1]), np.float32)  # rows take memory once they are filled
        kept[-1:] = scores[max(n - 1, 0) : n]
    held.context.kv.seq_rm(0, n, -1)
    memory = b"".join(part.tobytes() for part in dump_state(held.context))
    return LlamaState(held.input_ids.copy(), kept, n, memory, len(memory), seed)


def put_state(held: Evaluated, state: LlamaState) -> None:
    """Continue where a state was taken; the context may have another size that suffices.

    Raises:
        StateError: of another model or cache type, damaged, or too large. Nothing has changed then.
    """
    scores, n = held.scores, state.n_tokens
    if n > len(held.input_ids):  # a window's cache may hold their end nevertheless
        raise StateError(
            f"LlamaState: {n} tokens do not fit into a context of {len(held.input_ids)}; "
            f"use n_ctx={n} or more"
        )
    restore_state(held.context, state.llama_state, name="LlamaState")
    held.holder, held.n_tokens = None, n
    held.input_ids[:n] = state.input_ids[:n]
    if held.logits_all:
        scores[:n] = state.scores
    else:
        scores[max(n - 1, 0) : n] = state.scores[-1:]
