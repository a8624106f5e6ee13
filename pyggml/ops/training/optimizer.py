"""Steps of optimizers, which change parameters in place: OPT_STEP_ADAMW and OPT_STEP_SGD.

    params.set([alpha, beta1, beta2, eps, wd, 1 / (1 - beta1**t), 1 / (1 - beta2**t)])
    opt_step_adamw(ctx, w, dw, m, v, params)           # a view of w

What changes between steps, such as the learning rate, is data: the graph stays the same.
Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", algorithm 2.
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import F32, Arg, Array, Case, Cost, View, arg, case, define_op, require, source

__all__ = ["opt_step_adamw", "opt_step_sgd"]

ADAMW_PARAMS = ("alpha", "beta1", "beta2", "eps", "wd", "beta1h", "beta2h")
SGD_PARAMS = ("alpha", "wd")


def _infer(op: str, n_params: int, a: Tensor, *others: Tensor) -> View:
    *same, params = others
    for x in (a, *same):
        require(
            x.ne == a.ne and (x.is_contiguous() or x is same[0]),
            op,
            f"'{x.name}' {x.ne} must be contiguous and of the sizes of a '{a.name}' {a.ne}",
        )
    require(
        params.ne == (n_params, 1, 1, 1) and params.is_contiguous(),
        op,
        f"params {params.ne} must be {n_params} numbers",
    )
    return View(a, a.ne, a.nb)


def _adamw(a: Array, grad: Array, m: Array, v: Array, params: Array) -> tuple[Array, Array, Array]:
    alpha, beta1, beta2, eps, wd, beta1h, beta2h = params.reshape(-1).astype(np.float64)
    m = beta1 * m + (1 - beta1) * grad
    v = beta2 * v + (1 - beta2) * grad * grad
    step = (m * beta1h) / (np.sqrt(v * beta2h) + eps)
    return a * (1 - alpha * wd) - alpha * step, m, v


def _numbers(*values: float) -> Arg:
    row = np.array(values, np.float32).reshape(1, 1, 1, -1)
    return Arg((len(values),), values=lambda rng: row)


def _adamw_cases() -> list[Case]:
    first = _numbers(1e-3, 0.9, 0.999, 1e-8, 0.0, 10.0, 1000.0)
    later = _numbers(0.1, 0.9, 0.95, 1e-8, 0.1, 1.5, 1.25)
    return [
        case(*(arg(*ne, low=low) for low in (-1, -1, -1, 0)), params)
        for ne, params in (((1,), first), ((65, 17, 3), first), ((9001,), later))
    ] + [
        case(arg(17, 5, 3), arg(17, 3, 5, permute=(0, 2, 1, 3)), arg(17, 5, 3),
             arg(17, 5, 3, low=0), later),
        case(*(arg(576, 1536, low=low) for low in (-1, -1, -1, 0)), later, perf=True),
    ]  # fmt: skip


OPT_STEP_ADAMW = define_op(
    "OPT_STEP_ADAMW",
    src={name: source(F32) for name in ("a", "grad", "m", "v", "params")},
    infer=lambda *src: _infer("OPT_STEP_ADAMW", len(ADAMW_PARAMS), *src),
    reference=_adamw,
    cases=_adamw_cases,
    cost=lambda node: Cost(7 * node.nbytes),
    doc="A step of AdamW with the gradient `grad`: changes `a` and the moments `m` and `v`.",
    updates=("m", "v"),
)


def opt_step_adamw(
    ctx: Context, a: Tensor, grad: Tensor, m: Tensor, v: Tensor, params: Tensor
) -> Tensor:
    """Change ``a``, ``m`` and ``v`` by a step of AdamW; returns a view of ``a``.

    Args:
        params: ``alpha`` (learning rate), ``beta1``, ``beta2``, ``eps``, ``wd`` (weight decay),
            and 1 / (1 - beta^t) of both betas in step t (from 1 on).

    Shape:
        a, grad, m and v F32 of one size, params F32 [7] -> a's

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit, or a, m or v has gaps.
    """
    return OPT_STEP_ADAMW.build(ctx, a, grad, m, v, params)


def _sgd(a: Array, grad: Array, params: Array) -> Array:
    alpha, wd = params.reshape(-1).astype(np.float64)
    out: Array = a * (1 - alpha * wd) - alpha * grad
    return out


OPT_STEP_SGD = define_op(
    "OPT_STEP_SGD",
    src={name: source(F32) for name in ("a", "grad", "params")},
    infer=lambda *src: _infer("OPT_STEP_SGD", len(SGD_PARAMS), *src),
    reference=_sgd,
    cases=lambda: [
        case(arg(1), arg(1), _numbers(0.1, 0.0)),
        case(arg(65, 17, 3), arg(65, 17, 3), _numbers(1e-3, 0.1)),
        case(arg(17, 5, 3), arg(17, 3, 5, permute=(0, 2, 1, 3)), _numbers(0.5, 0.01)),
        case(arg(576, 1536), arg(576, 1536), _numbers(1e-3, 0.1), perf=True),
    ],
    cost=lambda node: Cost(3 * node.nbytes),
    doc="A step of gradient descent with the gradient `grad`: changes `a`.",
)


def opt_step_sgd(ctx: Context, a: Tensor, grad: Tensor, params: Tensor) -> Tensor:
    """Change ``a`` to ``a * (1 - alpha * wd) - alpha * grad``; returns a view of ``a``.

    Args:
        params: ``alpha`` (learning rate) and ``wd`` (weight decay).

    Shape:
        a and grad F32 of one size, params F32 [2] -> a's

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit, or a has gaps.
    """
    return OPT_STEP_SGD.build(ctx, a, grad, params)
