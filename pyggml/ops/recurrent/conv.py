"""SSM_CONV: a causal convolution of each channel over time; TOKEN_SHIFT: the token before.

    y = ssm_conv_slots(ctx, x, weight, states, runs, slots)
    before = token_shift(ctx, x, states, runs, slots)

The state of a sequence is its last tokens' inputs: as many as the convolution looks back.
Source: Gu and Dao 2023, "Mamba"; Peng et al. 2023, "RWKV"; ggml, ``ggml_compute_forward_ssm_conv``.
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import F32, I32, Array, Out, arg, case, define_op, require, source
from .runs import RUNS, new_states, require_runs, run_args

__all__ = ["ssm_conv", "ssm_conv_slots", "token_shift"]


def _infer_conv(
    x: Tensor, c: Tensor, states: Tensor | None, runs: Tensor | None, slots: Tensor | None
) -> Out:
    op, (width, channels) = "SSM_CONV", c.ne[:2]
    require(c.ne[2:] == (1, 1) and c.is_contiguous(), op, f"c {c.ne}, want [d_conv, channels]")
    if states is None or runs is None or slots is None:
        n_t = x.ne[0] - width + 1
        require(
            x.ne[1] == channels and n_t >= 1 and x.ne[3] == 1, op,
            f"sx {x.ne}, want [{width - 1} + n_t, {channels}, n_s] for c {c.ne}",
        )  # fmt: skip
        return Out(F32, (channels, n_t, x.ne[2], 1))
    require(x.ne[0] == channels and x.ne[2:] == (1, 1), op, f"x {x.ne}, want [{channels}, T]")
    require(
        states.ne[:2] == (channels, width - 1) and states.ne[3] == 1, op,
        f"states {states.ne}, want [{channels}, {width - 1}, n_slots] for c {c.ne}",
    )  # fmt: skip
    require_runs(op, states, runs, slots, x.ne[1])
    return Out(F32, x.ne)


def _conv(
    x: Array, c: Array, states: Array | None, runs: Array | None, slots: Array | None
) -> Array | tuple[Array, Array]:
    weight = c[0, 0].astype(np.float64)  # [channels, d_conv]
    if states is None or runs is None or slots is None:
        windows = np.lib.stride_tricks.sliding_window_view(x[0], weight.shape[1], axis=-1)
        y: Array = np.einsum("sctw,cw->stc", windows, weight)[None]
        return y
    y = np.zeros(x.shape)

    def step(t: int, state: Array) -> Array:  # [d_conv - 1, channels]
        window = np.concatenate([state, x[0, 0, t : t + 1]])
        y[0, 0, t] = np.einsum("wc,cw->c", window, weight)
        return window[1:]

    return y, new_states(step, states[0], x.shape[2], runs[0, 0], slots[0, 0, 0])[None]


SSM_CONV = define_op(
    "SSM_CONV",
    src={
        "sx": source(F32),
        "c": source(F32),
        "states?": source(F32),
        **RUNS,
    },
    infer=_infer_conv,
    reference=_conv,
    cases=lambda: [
        case(arg(4, 33), arg(4, 33)),
        case(arg(8, 64, 4), arg(4, 64)),
        case(arg(66, 48, 2), arg(3, 48)),
        *(
            case(
                arg(n, sum(lengths) + pad),
                arg(w, n),
                arg(n, w - 1, 9),
                *run_args(9, *lengths, padding=pad, drafted=drafted),
            )
            for n, w, lengths, pad, drafted in (
                (64, 4, (1,), 0, False),
                (33, 3, (5, 1, 2), 2, False),
                (40, 4, (1, 2, 4), 0, True),
            )
        ),
        case(arg(2304, 1), arg(4, 2304), arg(2304, 3, 2), *run_args(2, 1), perf=True),
        case(arg(2304, 512), arg(4, 2304), arg(2304, 3, 2), *run_args(2, 512), perf=True),
    ],
    max_nmse=1e-11,
    doc="A causal convolution over time, of each channel with weights of its own.",
    updates=("states?",),
)


def ssm_conv(ctx: Context, sx: Tensor, c: Tensor) -> Tensor:
    """The convolution of sequences of equal length, each after the tokens that it looks back to.

    Shape:
        sx F32 [d_conv - 1 + n_t, channels, n_s], c F32 [d_conv, channels] -> [channels, n_t, n_s]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return SSM_CONV.build(ctx, sx, c)


def ssm_conv_slots(
    ctx: Context, x: Tensor, c: Tensor, states: Tensor, runs: Tensor, slots: Tensor
) -> Tensor:
    """The convolution of runs of tokens, whose states are slots that it updates (see ``runs``).

    Shape:
        x F32 [channels, T], c F32 [d_conv, channels], states F32 [channels, d_conv - 1, n_slots],
        runs I32 [3, n_runs], slots I32 [T] -> [channels, T]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return SSM_CONV.build(ctx, x, c, states, runs, slots)


def _infer_shift(x: Tensor, states: Tensor, runs: Tensor, slots: Tensor) -> Out:
    op = "TOKEN_SHIFT"
    require(x.ne[2:] == (1, 1), op, f"x {x.ne}, want [n, T]")
    require(
        states.ne[0] == x.ne[0] and states.ne[2:] == (1, 1), op,
        f"states {states.ne}, want [{x.ne[0]}, n_slots]",
    )  # fmt: skip
    require_runs(op, states, runs, slots, x.ne[1])
    return Out(F32, x.ne)


def _shift(x: Array, states: Array, runs: Array, slots: Array) -> tuple[Array, Array]:
    y = np.zeros(x.shape)

    def step(t: int, state: Array) -> Array:
        y[0, 0, t] = state
        row: Array = x[0, 0, t]
        return row

    return y, new_states(step, states[0, 0], x.shape[2], runs[0, 0], slots[0, 0, 0])[None, None]


TOKEN_SHIFT = define_op(
    "TOKEN_SHIFT",
    src={
        "x": source(F32),
        "states": source(F32),
        "runs": source(I32),
        "slots": source(I32),
    },
    infer=_infer_shift,
    reference=_shift,
    cases=lambda: [
        case(arg(64, 1), arg(64, 2), *run_args(2, 1)),
        case(arg(33, 10), arg(33, 9), *run_args(9, 5, 1, 2, padding=2)),
        case(arg(40, 7), arg(40, 9), *run_args(9, 1, 2, 4, drafted=True)),
        case(arg(2048, 512), arg(2048, 2), *run_args(2, 512), perf=True),
    ],
    exact=True,
    doc="The row of the token before, from its run or from the state.",
    updates=("states",),
)


def token_shift(ctx: Context, x: Tensor, states: Tensor, runs: Tensor, slots: Tensor) -> Tensor:
    """The row of the token before each token, whose states are slots that it updates.

    Shape:
        x F32 [n, T], states F32 [n, n_slots], runs I32 [3, n_runs], slots I32 [T] -> [n, T]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return TOKEN_SHIFT.build(ctx, x, states, runs, slots)
