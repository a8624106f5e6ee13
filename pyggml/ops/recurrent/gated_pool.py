"""GATED_POOL: the mean of each ``ratio`` tokens' rows, with a softmax over them for each column.

    y = gated_pool(ctx, x, score, bias, pos, (states, runs, slots))

The groups of a sequence are its positions from a multiple of ``ratio`` on, ``ratio`` of them. A
token's weight in a column is the softmax of ``score + bias[pos % ratio]`` over the group. With
``overlap``, a row has two halves, and a group's mean is over its own second halves and the first
halves of the group before it. The state of a sequence is what a softmax needs of the tokens so far
(maximum, sum and weighted sum of each column), that of 0 tokens is zeros:

    [3 n]                   of the group of the last token; n columns of x
    [3 n + 3 n / 2]         with ``overlap``: then of the first halves of the group before it

Source: DeepSeek-AI 2026, "DeepSeek-V4", section 2.3; transformers, ``DeepseekV4CSACompressor`` and
``DeepseekV4HCACompressor``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import F32, I32, Arg, Array, Case, Out, arg, case, define_op, require, source
from .runs import new_states, require_runs, run_args

__all__ = ["gated_pool"]

_OP = "GATED_POOL"


def _infer(
    x: Tensor, score: Tensor, bias: Tensor, pos: Tensor, states: Tensor, runs: Tensor,
    slots: Tensor, overlap: bool,
) -> Out:  # fmt: skip
    n, n_tokens = x.ne[:2]
    require(
        x.ne[2:] == (1, 1) and n % (1 + overlap) == 0, _OP,
        f"x {x.ne}, want [n, T]" + ", n even with overlap" * overlap,
    )  # fmt: skip
    require(score.ne == x.ne, _OP, f"score {score.ne} must have the sizes of x {x.ne}")
    require(
        bias.ne[0] == n and bias.ne[1] > 0 and bias.ne[2:] == (1, 1), _OP,
        f"bias {bias.ne}, want [{n}, ratio]",
    )  # fmt: skip
    require(pos.ne == (n_tokens, 1, 1, 1), _OP, f"pos {pos.ne}, want [{n_tokens}]")
    size = 3 * n + 3 * n // 2 * overlap
    require(
        states.ne[0] == size and states.ne[2:] == (1, 1), _OP,
        f"states {states.ne}, want [{size}, n_slots]",
    )  # fmt: skip
    require_runs(_OP, states, runs, slots, n_tokens)
    return Out(F32, (n // (1 + overlap), n_tokens, 1, 1))


def _merged(a: Array, b: Array) -> Array:
    """The softmax of two sets of tokens, each as [maximum, sum, weighted sum]."""
    top = np.where(b[1] == 0, a[0], np.where(a[1] == 0, b[0], np.maximum(a[0], b[0])))
    fa, fb = (np.where(x[1] == 0, 0, np.exp(np.minimum(x[0] - top, 0))) for x in (a, b))
    return np.stack([top, a[1] * fa + b[1] * fb, a[2] * fa + b[2] * fb])


def _gated_pool(
    x: Array, score: Array, bias: Array, pos: Array, states: Array, runs: Array, slots: Array,
    overlap: bool,
) -> tuple[Array, Array]:  # fmt: skip
    values, scores, biases = (a[0, 0].astype(np.float64) for a in (x, score, bias))
    n, ratio, half = values.shape[1], len(biases), values.shape[1] // 2
    y = np.zeros((len(values), half if overlap else n))

    def step(t: int, state: Array) -> Array:
        current, before = state[: 3 * n].reshape(3, n), state[3 * n :].reshape(3, -1)
        place = pos[0, 0, 0, t] % ratio
        if place == 0:
            current, before = np.zeros_like(current), current[:, :half] * overlap
        one = np.stack([scores[t] + biases[place], np.ones(n), values[t]])
        current = _merged(current, one)
        if place == ratio - 1:
            pooled = _merged(before, current[:, half:]) if overlap else current
            y[t] = pooled[2] / pooled[1]
        parts = (current, before[:, : half * overlap])
        return np.concatenate([part.reshape(-1) for part in parts])

    new = new_states(step, states[0, 0].astype(np.float64), len(values), runs[0, 0], slots[0, 0, 0])
    return y[None, None], new[None, None]


def _cases() -> list[Case]:
    def one(n: int, ratio: int, overlap: bool, lengths: tuple[int, ...], **kw: Any) -> Case:
        perf, n_slots, padding = kw.pop("perf", False), 16, kw.get("padding", 0)
        n_tokens, size = sum(lengths) + padding, 3 * n + 3 * n // 2 * overlap
        starts = [0, ratio, *range(1, len(lengths))]  # of the runs

        def positions(rng: np.random.Generator) -> Array:
            found = [start + np.arange(k) for start, k in zip(starts, lengths, strict=False)]
            return np.concatenate([*found, np.zeros(padding, int)])

        def tokens_so_far(rng: np.random.Generator) -> Array:
            return rng.uniform(0.5, 1.5, (n_slots, size))

        return case(
            arg(n, n_tokens), arg(n, n_tokens, low=-3, high=3), arg(n, ratio),
            Arg((n_tokens,), I32, values=positions), Arg((size, n_slots), values=tokens_so_far),
            *run_args(n_slots, *lengths, **kw), overlap=overlap, perf=perf,
        )  # fmt: skip

    return [
        one(64, 4, True, (1,)),
        one(64, 4, True, (13, 9, 3), padding=2),
        one(70, 4, True, (2, 1, 6), drafted=True),
        one(33, 4, False, (9, 1, 5), padding=1),
        one(40, 8, False, (20, 3, 11), drafted=True),
        one(1024, 4, True, (1,), perf=True),
        one(1024, 4, True, (512,), perf=True),
        one(512, 128, False, (512,), perf=True),
    ]


GATED_POOL = define_op(
    _OP,
    src={
        "x": source(F32),
        "score": source(F32),
        "bias": source(F32),
        "pos": source(I32),
        "states": source(F32),
        "runs": source(I32),
        "slots": source(I32),
    },
    params={"overlap": False},
    infer=_infer,
    reference=_gated_pool,
    cases=_cases,
    max_nmse=1e-10,
    doc="The mean of each group of tokens, with a softmax over them for each column.",
    updates=("states",),
)


def gated_pool(
    ctx: Context, x: Tensor, score: Tensor, bias: Tensor, pos: Tensor,
    state: tuple[Tensor, Tensor, Tensor], overlap: bool = False,
) -> Tensor:  # fmt: skip
    """The mean of a group's rows at its last token, zeros at the others (see the module).

    Args:
        pos: positions of the tokens.
        state: states that it updates, runs and slots (see ``runs``).
        overlap: groups take part in the next one's mean with the first halves of their rows.

    Shape:
        x and score F32 [n, T], bias F32 [n, ratio], pos I32 [T], states F32 [3 n, n_slots] (with
        ``overlap`` [9 n / 2, n_slots]), runs I32 [3, n_runs], slots I32 [T] -> [n, T] or [n / 2, T]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return GATED_POOL.build(ctx, x, score, bias, pos, *state, overlap=bool(overlap))
