"""RWKV_WKV6 and RWKV_WKV7: time mixing of RWKV 6 and 7.

    y = rwkv_wkv6_slots(ctx, k, v, r, tf, td, states, runs, slots)
    y = rwkv_wkv7_slots(ctx, r, w, k, v, a, b, states, runs, slots)

For each head, from token to token, with the state S:

    WKV6    y = (S + k tf v^T)^T r      S = td S + k v^T            S [value, key]
    WKV7    S = S w + v k^T + (S a) b^T             y = S r         S [key, value]

Sizes of S are in ne order; ``tf``, ``td`` and ``w`` are numbers for each key.
Source: Peng et al. 2024, "Eagle and Finch"; Peng et al. 2025, "RWKV-7 Goose"; ggml,
``ggml_compute_forward_rwkv_wkv6_f32`` and ``ggml_compute_forward_rwkv_wkv7_f32``.
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import F32, Arg, Array, Cost, Out, arg, define_op, require, source
from .runs import RUNS, head_cases, infer_heads, result_of, state_cost

__all__ = ["rwkv_wkv6", "rwkv_wkv6_slots", "rwkv_wkv7", "rwkv_wkv7_slots"]


def _infer_6(
    k: Tensor, v: Tensor, r: Tensor, tf: Tensor, td: Tensor, state: Tensor,
    runs: Tensor | None, slots: Tensor | None,
) -> Out:  # fmt: skip
    op = "RWKV_WKV6"
    want = (*k.ne[:2], 1, 1)
    require(tf.ne == want and tf.is_contiguous(), op, f"tf {tf.ne}, want {want} without gaps")
    return infer_heads(op, {"k": k, "v": v, "r": r, "td": td}, state, runs, slots)


def _wkv6(
    k: Array, v: Array, r: Array, tf: Array, td: Array, state: Array,
    runs: Array | None, slots: Array | None,
) -> Array | tuple[Array, Array]:  # fmt: skip
    k, v, r, td = (x[0].astype(np.float64) for x in (k, v, r, td))  # [T, H, S]
    y = np.zeros(v.shape)

    def step(t: int, S: Array) -> Array:  # [H, key, value]
        added = k[t][:, :, None] * v[t][:, None]
        y[t] = np.einsum("hkv,hk->hv", S + tf[0, 0][:, :, None] * added, r[t])
        after: Array = S * td[t][:, :, None] + added
        return after

    return result_of(y, state, step, runs, slots)


def _infer_7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor,
    runs: Tensor | None, slots: Tensor | None,
) -> Out:  # fmt: skip
    sources = {"r": r, "w": w, "k": k, "v": v, "a": a, "b": b}
    return infer_heads("RWKV_WKV7", sources, state, runs, slots)


def _wkv7(
    r: Array, w: Array, k: Array, v: Array, a: Array, b: Array, state: Array,
    runs: Array | None, slots: Array | None,
) -> Array | tuple[Array, Array]:  # fmt: skip
    r, w, k, v, a, b = (x[0].astype(np.float64) for x in (r, w, k, v, a, b))  # [T, H, S]
    y = np.zeros(v.shape)

    def step(t: int, S: Array) -> Array:  # [H, value, key]
        product = np.einsum("hvk,hk->hv", S, a[t])
        S = S * w[t][:, None] + v[t][:, :, None] * k[t][:, None]
        S = S + product[:, :, None] * b[t][:, None]
        y[t] = np.einsum("hvk,hk->hv", S, r[t])
        return S

    return result_of(y, state, step, runs, slots)


def _cost(node: Tensor) -> Cost:
    """Of both: per element of the state 3 multiply-adds in version 6, 5 in version 7."""
    assert node.op is not None
    x, state = node.src[0], node.src[node.op.src.index("state")]
    assert x is not None and state is not None
    macs = 3 if node.op.name == "RWKV_WKV6" else 5
    return state_cost(node, state, x.ne[0] * x.ne[0] * x.ne[1], x.ne[2], macs)


def _sources_7(S: int, H: int, T: int) -> list[Arg]:
    """``a`` and ``b`` have rows of about unit length, so that states stay small."""
    x, unit = arg(S, H, T), arg(S, H, T, low=-(S**-0.5), high=S**-0.5)
    return [x, arg(S, H, T, low=0), x, x, unit, unit]


RWKV_WKV6 = define_op(
    "RWKV_WKV6",
    src={
        **dict.fromkeys(("k", "v", "r", "tf", "td", "state"), source(F32)),
        **RUNS,
    },
    infer=_infer_6,
    reference=_wkv6,
    cases=lambda: head_cases(lambda S, H, T: [*[arg(S, H, T)] * 3, arg(S, H), arg(S, H, T, low=0)]),
    max_nmse=1e-11,
    cost=_cost,
    doc="`y = (S + k tf v^T)^T r`, `S = td S + k v^T` from token to token: RWKV 6.",
    updates=("state",),
)

RWKV_WKV7 = define_op(
    "RWKV_WKV7",
    src={
        **dict.fromkeys(("r", "w", "k", "v", "a", "b", "state"), source(F32)),
        **RUNS,
    },
    infer=_infer_7,
    reference=_wkv7,
    cases=lambda: head_cases(_sources_7, small=(32, 1, 3, 1)),  # ggml reads whole vectors of 32
    max_nmse=1e-11,
    cost=_cost,
    doc="`S = S w + v k^T + (S a) b^T`, `y = S r` from token to token: RWKV 7.",
    updates=("state",),
)


def rwkv_wkv6(
    ctx: Context, k: Tensor, v: Tensor, r: Tensor, tf: Tensor, td: Tensor, state: Tensor
) -> Tensor:
    """Time mixing of RWKV 6 for sequences of equal length: all results, then the new states.

    Args:
        tf: the weight of the token itself.
        td: the decay.

    Shape:
        k, v, r, td F32 [S, H, n_t n_s], tf [S, H], state [S S H, n_s]
        -> F32 [S H, n_t n_s + S n_s]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return RWKV_WKV6.build(ctx, k, v, r, tf, td, state)


def rwkv_wkv6_slots(
    ctx: Context, k: Tensor, v: Tensor, r: Tensor, tf: Tensor, td: Tensor, states: Tensor,
    runs: Tensor, slots: Tensor,
) -> Tensor:  # fmt: skip
    """Time mixing of RWKV 6 for runs of tokens, whose states are slots that it updates.

    Shape:
        k, v, r, td F32 [S, H, T], tf [S, H], states [S S H, n_slots], runs I32 [3, n_runs],
        slots I32 [T] -> F32 [S, H, T]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return RWKV_WKV6.build(ctx, k, v, r, tf, td, states, runs, slots)


def rwkv_wkv7(
    ctx: Context, r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor
) -> Tensor:
    """Time mixing of RWKV 7 for sequences of equal length: all results, then the new states.

    Args:
        w: the decay.
        a, b: the state's product with ``a`` is added times ``b``.

    Shape:
        r, w, k, v, a, b F32 [S, H, n_t n_s], state [S S H, n_s] -> F32 [S H, n_t n_s + S n_s]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return RWKV_WKV7.build(ctx, r, w, k, v, a, b, state)


def rwkv_wkv7_slots(
    ctx: Context, r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor,
    states: Tensor, runs: Tensor, slots: Tensor,
) -> Tensor:  # fmt: skip
    """Time mixing of RWKV 7 for runs of tokens, whose states are slots that it updates.

    Shape:
        r, w, k, v, a, b F32 [S, H, T], states [S S H, n_slots], runs I32 [3, n_runs],
        slots I32 [T] -> F32 [S, H, T]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return RWKV_WKV7.build(ctx, r, w, k, v, a, b, states, runs, slots)
