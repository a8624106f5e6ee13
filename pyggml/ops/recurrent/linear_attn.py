"""GATED_LINEAR_ATTN: attention without softmax, whose state decays by a gate.

    y = gated_linear_attn_slots(ctx, k, v, q, g, states, runs, slots, scale)

For each head, from token to token, with the state S [value, key] in ne order:

    S = g S + k v^T        y = scale S^T q

Source: Yang et al. 2024, "Gated Linear Attention"; ggml, ``ggml_compute_forward_gla_f32``.
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import F32, Array, Cost, Out, arg, define_op, source
from .runs import RUNS, head_cases, infer_heads, result_of, state_cost

__all__ = ["gated_linear_attn", "gated_linear_attn_slots"]


def _infer(
    k: Tensor, v: Tensor, q: Tensor, g: Tensor, state: Tensor, runs: Tensor | None,
    slots: Tensor | None, scale: float,
) -> Out:  # fmt: skip
    sources = {"k": k, "v": v, "q": q, "g": g}
    return infer_heads("GATED_LINEAR_ATTN", sources, state, runs, slots)


def _attend(
    k: Array, v: Array, q: Array, g: Array, state: Array, runs: Array | None,
    slots: Array | None, scale: float,
) -> Array | tuple[Array, Array]:  # fmt: skip
    k, v, q, g = (x[0].astype(np.float64) for x in (k, v, q, g))  # [T, H, S]
    y = np.zeros(v.shape)

    def step(t: int, S: Array) -> Array:  # [H, key, value]
        S = S * g[t][:, :, None] + k[t][:, :, None] * v[t][:, None]
        y[t] = scale * np.einsum("hkv,hk->hv", S, q[t])
        return S

    return result_of(y, state, step, runs, slots)


def _cost(node: Tensor) -> Cost:
    k, state = node.src[0], node.src[4]
    assert k is not None and state is not None
    return state_cost(node, state, k.ne[0] * k.ne[0] * k.ne[1], k.ne[2], 3)


GATED_LINEAR_ATTN = define_op(
    "GATED_LINEAR_ATTN",
    src={
        **dict.fromkeys(("k", "v", "q", "g", "state"), source(F32)),
        **RUNS,
    },
    params={"scale": 1.0},
    infer=_infer,
    reference=_attend,
    cases=lambda: head_cases(
        lambda S, H, T: [*[arg(S, H, T)] * 3, arg(S, H, T, low=0)], lambda S: {"scale": S**-0.5}
    ),
    max_nmse=1e-11,
    cost=_cost,
    doc="`S = g S + k v^T`, `y = scale S^T q` from token to token.",
    updates=("state",),
)


def gated_linear_attn(
    ctx: Context, k: Tensor, v: Tensor, q: Tensor, g: Tensor, state: Tensor, scale: float
) -> Tensor:
    """Gated linear attention of sequences of equal length: all results, then the new states.

    Shape:
        k, v, q, g F32 [S, H, n_t n_s], state [S S H, n_s] -> F32 [S H, n_t n_s + S n_s]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return GATED_LINEAR_ATTN.build(ctx, k, v, q, g, state, scale=scale)


def gated_linear_attn_slots(
    ctx: Context, k: Tensor, v: Tensor, q: Tensor, g: Tensor, states: Tensor, runs: Tensor,
    slots: Tensor, scale: float,
) -> Tensor:  # fmt: skip
    """Gated linear attention of runs of tokens, whose states are slots that it updates.

    Shape:
        k, v, q, g F32 [S, H, T], states [S S H, n_slots], runs I32 [3, n_runs], slots I32 [T]
        -> F32 [S, H, T]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return GATED_LINEAR_ATTN.build(ctx, k, v, q, g, states, runs, slots, scale=scale)
