"""SSM_SCAN: the selective scan of Mamba 1 and 2.

    y = ssm_scan_slots(ctx, states, x, dt, A, B, C, runs, slots)

For each head, with ``a = exp(dt' A)`` and ``dt' = softplus(dt)``, the state S [d_state, head_dim]
of a token follows from that of the token before:

    S = a S + dt' x B^T        y = S^T C

In Mamba 2 ``a`` is one number for a head, in Mamba 1 one for each row of the state, and a head has
one column.
Source: Gu and Dao 2023, "Mamba"; Dao and Gu 2024, "Transformers are SSMs"; ggml,
``ggml_compute_forward_ssm_scan_f32``.
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import F32, I32, Arg, Array, Case, Cost, Out, arg, case, define_op, require, source
from .runs import new_states, require_runs, run_args, state_cost

__all__ = ["ssm_scan", "ssm_scan_slots"]
_OP = "SSM_SCAN"


def _infer(
    s: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, ids: Tensor,
    slots: Tensor | None, K: int,
) -> Out:  # fmt: skip
    d_state, head_dim, n_head = s.ne[:3]
    n_t, n_s = x.ne[2:]
    require(
        x.ne[:2] == (head_dim, n_head) and x.nb[1] == 4 * head_dim, _OP,
        f"x {x.ne} must be [{head_dim}, {n_head}, n_t, n_s] as the states {s.ne}, without gaps "
        "between heads",
    )  # fmt: skip
    require(dt.ne == (n_head, n_t, n_s, 1), _OP, f"dt {dt.ne}, want [{n_head}, {n_t}, {n_s}]")
    require(
        A.ne[0] in (1, d_state) and A.ne[1:] == (n_head, 1, 1) and A.is_contiguous(), _OP,
        f"A {A.ne}, want [1 or {d_state}, {n_head}] without gaps",
    )  # fmt: skip
    require(
        B.ne == C.ne and B.ne[0] == d_state and B.ne[2:] == (n_t, n_s) and not n_head % B.ne[1],
        _OP, f"B {B.ne} and C {C.ne}, want [{d_state}, divisor of {n_head}, {n_t}, {n_s}]",
    )  # fmt: skip
    if slots is not None:
        require(n_s == 1, _OP, f"x {x.ne}: the tokens of all sequences are in one row")
        require_runs(_OP, s, ids, slots, n_t)
        return Out(F32, (head_dim, n_head, n_t, 1))
    require(ids.ne == (n_s, 1, 1, 1), _OP, f"ids {ids.ne}, want [{n_s}]")
    require(s.is_contiguous(), _OP, f"states {s.ne} have gaps (strides {s.nb})")
    require(1 <= K <= n_t, _OP, f"K {K}, want 1 to the {n_t} tokens of a sequence")
    return Out(F32, (x.nelements + K * d_state * head_dim * n_head * n_s, 1, 1, 1))


def _scan(
    s: Array, x: Array, dt: Array, A: Array, B: Array, C: Array, ids: Array,
    slots: Array | None, K: int,
) -> Array | tuple[Array, Array]:  # fmt: skip
    n_s, n_t, n_head, head_dim = x.shape
    dt = np.logaddexp(0, dt.astype(np.float64).reshape(-1, n_head))
    x, B, C = (a.astype(np.float64).reshape(-1, *a.shape[2:]) for a in (x, B, C))
    B, C = (a.repeat(n_head // a.shape[1], axis=1) for a in (B, C))  # [T, n_head, d_state]
    y = np.zeros((n_s * n_t, n_head, head_dim))

    def step(t: int, state: Array) -> Array:  # [n_head, head_dim, d_state]
        decay = np.exp(dt[t][:, None] * A[0, 0])  # [n_head, 1 or d_state]
        added = (dt[t][:, None] * x[t])[:, :, None] * B[t][:, None]
        state = state * decay[:, None] + added
        y[t] = np.einsum("hps,hs->hp", state, C[t])
        return state

    runs = None if slots is None else ids[0, 0]
    kept = new_states(
        step, s.astype(np.float64), len(y), runs, None if slots is None else slots[0, 0, 0],
        ids[0, 0, 0], n_s, K,
    )  # fmt: skip
    if slots is None:
        return np.concatenate([y.reshape(-1), kept.reshape(-1)])[None, None, None]
    return y[None], kept


def _cost(node: Tensor) -> Cost:
    s, x = node.src[:2]
    assert s is not None and x is not None
    return state_cost(node, s, s.ne[0] * s.ne[1] * s.ne[2], x.ne[2] * x.ne[3], 3)


def _case(d_state: int, dim: int, n_head: int, n_group: int, n_t: int, n_s: int, K: int = 1,
          mamba1: bool = False, perf: bool = False) -> Case:  # fmt: skip
    """A case of ggml's form."""
    ids = arg(n_s, type=I32, values=lambda rng: rng.permutation(n_s))
    return case(
        arg(d_state, dim, n_head, n_s), *_tokens(d_state, dim, n_head, n_group, (n_t, n_s), mamba1),
        ids, K=K, perf=perf,
    )  # fmt: skip


def _slots(d_state: int, dim: int, n_head: int, n_group: int, *lengths: int, n_slots: int = 9,
           mamba1: bool = False, perf: bool = False, **kw: int | bool) -> Case:  # fmt: skip
    """A case with runs."""
    n_tokens = sum(lengths) + int(kw.get("padding", 0))
    return case(
        arg(d_state, dim, n_head, n_slots),
        *_tokens(d_state, dim, n_head, n_group, (n_tokens,), mamba1),
        *run_args(n_slots, *lengths, **kw), perf=perf,  # type: ignore[arg-type]
    )  # fmt: skip


def _tokens(d_state: int, dim: int, n_head: int, n_group: int, tokens: tuple[int, ...],
            mamba1: bool) -> list[Arg]:  # fmt: skip
    return [
        arg(dim, n_head, *tokens),
        arg(n_head, *tokens, low=-4, high=2),
        arg(d_state if mamba1 else 1, n_head, low=-2, high=-0.1),
        arg(d_state, n_group, *tokens),
        arg(d_state, n_group, *tokens),
    ]


SSM_SCAN = define_op(
    _OP,
    src={
        "s": source(F32),
        "x": source(F32),
        "dt": source(F32),
        "A": source(F32),
        "B": source(F32),
        "C": source(F32),
        "ids": source(I32),
        "slots?": None,
    },
    params={"K": 1},
    infer=_infer,
    reference=_scan,
    cases=lambda: [
        _case(16, 1, 64, 1, 32, 4, mamba1=True),
        _case(17, 1, 5, 1, 3, 2, mamba1=True),
        _case(16, 4, 4, 2, 4, 2, K=2),
        _case(128, 64, 4, 2, 32, 4),
        _case(256, 64, 2, 2, 8, 4),
        _case(33, 3, 6, 3, 4, 2, K=4),
        _case(128, 64, 4, 2, 8, 2, K=3),
        _slots(8, 3, 4, 2, 2, 1, 2, n_slots=6, padding=1, drafted=True),
        _slots(16, 4, 4, 1, 2, 1, n_slots=3),
        _slots(17, 1, 6, 2, 2, 1, 2, n_slots=6, mamba1=True),
        _slots(16, 1, 64, 1, 5, mamba1=True),
        _slots(16, 1, 64, 1, 1, 1, 1, mamba1=True),
        _slots(128, 64, 4, 2, 1),
        _slots(128, 64, 4, 1, 3, 1, 7, padding=2),
        _slots(40, 6, 4, 2, 1, 1, 4, drafted=True),
        _slots(128, 64, 32, 1, 1, n_slots=2, perf=True),
        _slots(128, 64, 32, 1, 512, n_slots=2, perf=True),
        _slots(16, 1, 1536, 1, 512, n_slots=2, mamba1=True, perf=True),
    ],
    max_nmse=1e-10,
    cost=_cost,
    doc="`S = a S + dt x B^T`, `y = S^T C` from token to token: the scan of Mamba 1 and 2.",
    updates=("s",),
)


def ssm_scan(
    ctx: Context, s: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, ids: Tensor,
    K: int = 1,
) -> Tensor:  # fmt: skip
    """The scan of sequences of equal length: the results of all tokens, then the new states.

    Args:
        dt: before softplus.
        ids: the state of each sequence.
        K: how many of a sequence's last states are returned, the last one first.

    Shape:
        s F32 [d_state, head_dim, n_head, n_states], x [head_dim, n_head, n_t, n_s],
        dt [n_head, n_t, n_s], A [1 or d_state, n_head], B and C [d_state, n_group, n_t, n_s],
        ids I32 [n_s] -> F32 [head_dim n_head n_t n_s + K d_state head_dim n_head n_s]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return SSM_SCAN.build(ctx, s, x, dt, A, B, C, ids, K=K)


def ssm_scan_slots(
    ctx: Context, states: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor,
    runs: Tensor, slots: Tensor,
) -> Tensor:  # fmt: skip
    """The scan of runs of tokens, whose states are slots that it updates (see ``runs``).

    Shape:
        states F32 [d_state, head_dim, n_head, n_slots], x [head_dim, n_head, T], dt [n_head, T],
        A [1 or d_state, n_head], B and C [d_state, n_group, T], runs I32 [3, n_runs],
        slots I32 [T] -> F32 [head_dim, n_head, T]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return SSM_SCAN.build(ctx, states, x, dt, A, B, C, runs, slots)
