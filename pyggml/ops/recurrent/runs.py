"""The tokens of several sequences in one node, and the states that recurrent ops carry along.

ggml's form of a recurrent op has ``n_s`` sequences of ``n_t`` tokens each, takes a state for each
sequence, and returns the results of all tokens and, behind them, the new states. A runtime whose
sequences have different lengths uses a second form, with two more sources:

    runs  I32 [3, n_runs]     first token, number of tokens, and slot of the state before them
    slots I32 [T]             the slot that gets the state after a token, -1 for none

The states are then slots of one tensor [..., n_slots], which the op updates in place, and only the
tokens' results are returned. Runs follow each other from token 0 on; a run without tokens is
padding, tokens after the last run are padding too, with results of 0. A slot of -1 in a run is a
state of zeros. The last token of a run has a slot. No run reads a slot that another run writes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...tensor import Tensor
from ..op import F32, I32, Arg, Array, Case, Cost, Out, arg, case, require, require_type, source

RUNS = {"runs?": source(I32), "slots?": source(I32)}  # the sources of the second form
Step = Callable[[int, Array], Array]  # (token, state before it) -> state after it


def require_runs(op: str, states: Tensor, runs: Tensor, slots: Tensor, n_tokens: int) -> None:
    """Raise ShapeError or TypeMismatch unless the sources of the second form fit."""
    for name, x in (("runs", runs), ("slots", slots)):
        require_type(op, name, x, (I32,))
        require(x.is_contiguous(), op, f"{name} {x.ne} has gaps (strides {x.nb})")
    require(runs.ne[0] == 3 and runs.ne[2:] == (1, 1), op, f"runs {runs.ne}, want [3, n_runs]")
    require(slots.ne == (n_tokens, 1, 1, 1), op, f"slots {slots.ne}, want [{n_tokens}]")
    require(states.is_contiguous(), op, f"states {states.ne} have gaps (strides {states.nb})")


def new_states(
    step: Step, states: Array, n_tokens: int, runs: Array | None, slots: Array | None,
    ids: Array | None = None, n_seqs: int = 1, K: int = 1,
) -> Array:  # fmt: skip
    """Carry states through all tokens by ``step``, which keeps the tokens' results itself.

    Args:
        states: [n_slots, ...], float64.
        ids: of ggml's form, the state of each sequence; None: the first belongs to the first.
        K: of ggml's form, how many of the last states are kept.

    Returns:
        The new content of the slots; in ggml's form [K, n_seqs, ...], the last state first.
    """
    if runs is not None and slots is not None:
        new = states.copy()
        for first, n, slot in runs:
            state = states[slot] if slot >= 0 else np.zeros_like(states[0])
            for t in range(first, first + n):
                state = step(t, state)
                if slots[t] >= 0:
                    new[slots[t]] = state
        return new
    n = n_tokens // n_seqs
    kept = np.zeros((K, n_seqs, *states.shape[1:]))
    for i in range(n_seqs):
        state = states[i if ids is None else ids[i]]
        for k in range(n):
            state = step(i * n + k, state)
            if n - 1 - k < K:
                kept[n - 1 - k, i] = state
    return kept


def result_of(
    y: Array, state: Array, step: Step, runs: Array | None, slots: Array | None, K: int = 1
) -> Array | tuple[Array, Array]:
    """The result of a reference whose states are S x S for a head.

    Args:
        y: [T, H, S], filled by ``step``.
        state: the source; ``step`` gets an array [H, S, S].
    """
    T, H, S = y.shape
    states = state.astype(np.float64).reshape(-1, H, S, S)
    if runs is None or slots is None:
        kept = new_states(step, states, T, None, None, None, len(states), K)
        return np.concatenate([y.reshape(-1), kept.reshape(-1)]).reshape(1, 1, -1, H * S)
    return y[None], new_states(step, states, T, runs[0, 0], slots[0, 0, 0]).reshape(state.shape)


def infer_heads(
    op: str, sources: dict[str, Tensor], state: Tensor, runs: Tensor | None, slots: Tensor | None
) -> Out:
    """The shape rule of ops whose sources are [S, H, T] and whose state is S x S for a head.

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    first, want = next(iter(sources.items()))
    S, H, T = want.ne[:3]
    for name, x in sources.items():
        require(
            x.ne == (S, H, T, 1), op, f"{name} {x.ne} and {first} {want.ne} must be [S, H, T]"
        )  # fmt: skip
    n = state.ne[1]
    require(state.ne == (S * S * H, n, 1, 1), op, f"state {state.ne}, want [{S * S * H}, n_s]")
    if runs is not None and slots is not None:
        require_runs(op, state, runs, slots, T)
        return Out(F32, (S, H, T, 1))
    require(state.is_contiguous(), op, f"state {state.ne} has gaps (strides {state.nb})")
    require(n > 0 and T % n == 0, op, f"{T} tokens are not those of {n} sequences")
    return Out(F32, (S * H, T + S * n, 1, 1))


def state_cost(node: Tensor, state: Tensor, size: int, tokens: int, macs: int) -> Cost:
    """The cost of a node with one run, or of ggml's form.

    Args:
        size: elements of a state.
        macs: multiply-adds of a token for each element of a state.
    """
    n_bytes = node.nbytes + sum(t.nbytes for t in node.src if t is not None and t is not state)
    moved = 8 * size if node.src[-1] is not None else state.nbytes
    return Cost(n_bytes + moved, macs * size * tokens)


def run_args(n_slots: int, *lengths: int, padding: int = 0, drafted: bool = False) -> list[Arg]:
    """``runs`` and ``slots`` of a test case.

    The first run begins from zeros and the second continues in its own slot; the others read one
    slot and write another. With ``drafted``, every token of the last run has a slot.
    """
    n_tokens = sum(lengths) + padding
    runs, slots, first = [], np.full(n_tokens, -1), 0
    free = iter(range(len(lengths), n_slots))
    for i, n in enumerate(lengths):
        runs.append((first, n, -1 if i == 0 else i))
        slots[first + n - 1] = i if i < 2 else next(free)
        if drafted and i == len(lengths) - 1:
            for t in range(first, first + n - 1):
                slots[t] = next(free)
        first += n
    runs.append((0, 0, 0))
    return [
        Arg((3, len(runs)), I32, values=lambda rng: np.array(runs)),
        Arg((n_tokens,), I32, values=lambda rng: slots),
    ]


def head_cases(
    sources: Callable[[int, int, int], list[Arg]],
    params: Callable[[int], dict[str, float]] = lambda S: {},
    small: tuple[int, int, int, int] = (8, 3, 2, 2),
) -> list[Case]:
    """Test cases of ops whose state is S x S for a head, in both forms.

    Args:
        sources: of S, heads and tokens: those before the state.
        params: of S: the op parameters.
        small: S, heads, tokens and sequences of the smallest case.
    """

    def one(S: int, H: int, tokens: int | list[int], n: int, perf: bool = False, **kw: int) -> Case:
        """Of ``n`` sequences or, with a list of lengths, of runs and ``n`` slots."""
        if isinstance(tokens, int):
            T, runs = tokens * n, []
        else:
            T, runs = sum(tokens) + kw.get("padding", 0), run_args(n, *tokens, **kw)  # type: ignore[arg-type]
        return case(*sources(S, H, T), arg(S * S * H, n), *runs, **params(S), perf=perf)

    return [
        one(64, 4, 1, 1),
        one(64, 4, 8, 4),
        one(*small),
        one(45, 3, 2, 2),
        one(12, 2, [2, 1, 2], 6, padding=1, drafted=True),
        one(16, 1, [2, 1], 3),
        one(64, 1, [2, 1], 3),
        one(64, 4, [1], 9),
        one(32, 6, [3, 1, 7], 9, padding=2),
        one(20, 3, [1, 1, 4], 9, drafted=True),
        one(64, 32, [1], 2, perf=True),
        one(64, 32, [512], 2, perf=True),
    ]
