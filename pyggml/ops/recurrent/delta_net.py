"""GATED_DELTA_NET: linear attention with the delta rule and a decay of the state.

    y = gated_delta_net_slots(ctx, q, k, v, g, beta, states, runs, slots)

For each head, from token to token, with the state S [key, value] in ne order:

    S = S exp(g)        S = S + beta (v - S k) k^T        y = S q / sqrt(S_v)

``g`` is a number for a head, or one for each key (KDA). Head h of v has head ``h % H_k`` of k and
``h % H_q`` of q.
Source: Yang et al. 2024, "Gated Delta Networks"; Kimi Team 2025, "Kimi Linear"; ggml,
``ggml_compute_forward_gated_delta_net_one_chunk``.
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import F32, Arg, Array, Case, Cost, Out, arg, case, define_op, require, source
from .runs import RUNS, require_runs, result_of, run_args, state_cost

__all__ = ["gated_delta_net", "gated_delta_net_slots"]
_OP = "GATED_DELTA_NET"


def _infer(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor,
    runs: Tensor | None, slots: Tensor | None, K: int,
) -> Out:  # fmt: skip
    S, H, n_t, n_s = v.ne
    for name, x in (("q", q), ("k", k)):
        fits = x.ne[0] == S and not H % x.ne[1] and x.ne[2] == n_t and not n_s % x.ne[3]
        require(fits, _OP, f"{name} {x.ne}, want [{S}, divisor of {H}, {n_t}, {n_s}]")
    require(
        g.ne in ((1, H, n_t, n_s), (S, H, n_t, n_s)), _OP,
        f"g {g.ne}, want [1 or {S}, {H}, {n_t}, {n_s}]",
    )  # fmt: skip
    require(beta.ne == (1, H, n_t, n_s), _OP, f"beta {beta.ne}, want [1, {H}, {n_t}, {n_s}]")
    want = f"state {state.ne}, want [{S}, {S}, {H}, "
    require(state.ne[:3] == (S, S, H), _OP, f"{want}n_s or n_slots]")
    if runs is not None and slots is not None:
        require(n_s == 1, _OP, f"v {v.ne}: the tokens of all sequences are in one row")
        require_runs(_OP, state, runs, slots, n_t)
        return Out(F32, (S, H, n_t, 1))
    require(state.ne[3] == n_s, _OP, f"{want}{n_s}]")
    require(state.is_contiguous(), _OP, f"state {state.ne} has gaps (strides {state.nb})")
    require(1 <= K <= n_t, _OP, f"K {K}, want 1 to the {n_t} tokens of a sequence")
    return Out(F32, (S * H, n_t * n_s + K * S * n_s, 1, 1))


def _delta_net(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, runs: Array | None,
    slots: Array | None, K: int,
) -> Array | tuple[Array, Array]:  # fmt: skip
    n_s, n_t, H, S = v.shape

    def rows(x: Array) -> Array:  # [T, H, n]
        x = x.astype(np.float64).repeat(n_s // x.shape[0], axis=0)
        return np.tile(x, (1, 1, H // x.shape[2], 1)).reshape(n_s * n_t, H, -1)

    q, k, v, g, beta = (rows(x) for x in (q, k, v, g, beta))
    y = np.zeros(v.shape)

    def step(t: int, M: Array) -> Array:  # [H, value, key]
        M = M * np.exp(g[t])[:, None]
        delta = beta[t] * (v[t] - np.einsum("hvk,hk->hv", M, k[t]))
        M = M + delta[:, :, None] * k[t][:, None]
        y[t] = np.einsum("hvk,hk->hv", M, q[t]) / np.sqrt(S)
        return M

    return result_of(y, state, step, runs, slots, K)


def _cost(node: Tensor) -> Cost:
    v, state = node.src[2], node.src[5]
    assert v is not None and state is not None
    return state_cost(node, state, v.ne[0] * v.ne[0] * v.ne[1], v.ne[2] * v.ne[3], 4)


def _case(
    S: int, H: int, tokens: int | list[int], n: int, repeat: int = 1, permuted: bool = False,
    kda: bool = False, K: int = 1, perf: bool = False, **kw: int,
) -> Case:  # fmt: skip
    """A case of ``n`` sequences or, with a list of lengths, of runs and ``n`` slots.

    Keys have about unit length, as models' have.
    """
    with_slots = isinstance(tokens, list)
    n_t = sum(tokens) + kw.get("padding", 0) if isinstance(tokens, list) else tokens
    n_s = 1 if with_slots else n
    unit = (3 / S) ** 0.5

    def heads(n_head: int, low: float, high: float) -> Arg:
        if permuted:
            return arg(S, n_t, n_head, n_s, low=low, high=high, permute=(0, 2, 1, 3))
        return arg(S, n_head, n_t, n_s, low=low, high=high)

    Hv = H * repeat
    gate = arg(S if kda else 1, Hv, n_t, n_s, low=-20 if n_t < 9 else -1, high=-1e-4)
    return case(
        heads(H, -unit, unit), heads(H, -unit, unit), heads(Hv, -0.3, 5), gate,
        arg(1, Hv, n_t, n_s, low=0), arg(S, S, Hv, n),
        *(run_args(n, *tokens, **kw) if isinstance(tokens, list) else []),  # type: ignore[arg-type]
        perf=perf, K=K,
    )  # fmt: skip


GATED_DELTA_NET = define_op(
    _OP,
    src={
        **dict.fromkeys(("q", "k", "v", "g", "beta", "state"), source(F32)),
        **RUNS,
    },
    params={"K": 1},
    infer=_infer,
    reference=_delta_net,
    cases=lambda: [
        _case(8, 2, 3, 2, repeat=2),
        _case(8, 2, 3, 1, repeat=2, kda=True, K=3),
        _case(128, 4, 1, 1),
        _case(16, 8, 1, 1, permuted=True, kda=True),
        _case(64, 4, 4, 2),
        _case(32, 4, 4, 2, repeat=2),
        _case(32, 4, 4, 2, repeat=2, kda=True),
        _case(64, 4, 33, 2, permuted=True),
        _case(37, 3, 3, 2, repeat=2, kda=True, K=3),
        _case(64, 4, 16, 2, K=4),
        _case(8, 2, [2, 1, 2], 6, repeat=2, padding=1, drafted=True),
        _case(17, 1, [2, 1], 3, kda=True),
        _case(16, 1, [2, 1], 3),
        _case(64, 1, [2, 1], 3, kda=True),
        _case(128, 2, [1], 9, repeat=2),
        _case(64, 2, [3, 1, 9], 9, repeat=2, padding=2),
        _case(64, 2, [3, 1, 9], 9, kda=True, padding=2),
        _case(24, 3, [1, 1, 4], 9, drafted=True),
        _case(128, 16, [1], 2, repeat=2, perf=True),
        _case(128, 16, [512], 2, repeat=2, perf=True),
        _case(128, 32, [1], 2, kda=True, perf=True),
        _case(128, 32, [512], 2, kda=True, perf=True),
    ],
    max_nmse=1e-10,
    cost=_cost,
    doc="`S = S exp(g)`, `S = S + beta (v - S k) k^T`, `y = S q / sqrt(S_v)` from token to token.",
    updates=("state",),
)


def gated_delta_net(
    ctx: Context, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor,
    K: int = 1,
) -> Tensor:  # fmt: skip
    """The gated delta rule for sequences of equal length: all results, then the new states.

    Args:
        g: the logarithm of the decay.
        K: how many of a sequence's last states are returned, the last one first.

    Shape:
        q F32 [S, H_q, n_t, n_s], k [S, H_k, n_t, n_s], v [S, H, n_t, n_s],
        g [1 or S, H, n_t, n_s], beta [1, H, n_t, n_s], state [S, S, H, n_s]
        -> F32 [S H, n_t n_s + K S n_s]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return GATED_DELTA_NET.build(ctx, q, k, v, g, beta, state, K=K)


def gated_delta_net_slots(
    ctx: Context, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Tensor,
    runs: Tensor, slots: Tensor,
) -> Tensor:  # fmt: skip
    """The gated delta rule for runs of tokens, whose states are slots that it updates.

    Shape:
        q F32 [S, H_q, T], k [S, H_k, T], v [S, H, T], g [1 or S, H, T], beta [1, H, T],
        states [S, S, H, n_slots], runs I32 [3, n_runs], slots I32 [T] -> F32 [S, H, T]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return GATED_DELTA_NET.build(ctx, q, k, v, g, beta, states, runs, slots)
