"""Element-wise functions of one tensor: UNARY with a ``kind``.

    y = silu(ctx, x)                               # or unary(ctx, x, "silu")

Every kind has a builder of its name. GELU is the exact tanh form in float32 (ggml's CPU looks it up
in an F16 table).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...context import Context
from ...errors import UnsupportedOp
from ...tensor import Tensor
from ..op import (
    ALL_FLOATS,
    BF16,
    F16,
    F32,
    OPS,
    Array,
    Case,
    Op,
    OpBuilders,
    Out,
    arg,
    case,
    define_op,
    half_nmse,
    require,
    same,
    source,
)
from .formulas import PARAMETERS, SMOOTH, reference

__all__ = [
    "abs", "ceil", "elu", "exp", "expm1", "floor", "gelu", "gelu_erf", "gelu_quick",
    "hardsigmoid", "hardswish", "neg", "relu", "round", "sgn", "sigmoid", "silu", "silu_back",
    "softplus", "step", "tanh", "trunc", "unary", "xielu",
]  # fmt: skip

KINDS = (
    "abs", "sgn", "neg", "step", "tanh", "elu", "relu", "sigmoid", "gelu", "gelu_quick", "silu",
    "hardswish", "hardsigmoid", "exp", "expm1", "softplus", "gelu_erf", "floor", "ceil", "round",
    "trunc",
)  # fmt: skip
XIELU = "xielu"  # the one kind with parameters
_XIELU_PARAMS = {"alpha_n": 0.0, "alpha_p": 0.0, "beta": 0.0, "eps": 0.0}


def _infer(x: Tensor, kind: str, **params: float) -> Out:
    require(kind in KINDS or kind == XIELU, "UNARY", f"no kind {kind!r}; there are {[*KINDS]}")
    return same(x)


def _unary(x: Array, kind: str, **params: float) -> Array:
    return reference(kind, x, *(params[key] for key in PARAMETERS.get(kind, ())))


def _cases() -> list[Case]:
    cases = [case(arg(65, 17, low=-8, high=8), kind=kind) for kind in KINDS]
    xielu: dict[str, Any] = {"alpha_n": 0.8, "alpha_p": 0.7, "beta": 0.5, "eps": -1e-6}
    cases.append(case(arg(65, 17, low=-8, high=8), kind=XIELU, **xielu))
    for kind in ("silu", "gelu", "relu", "tanh"):
        cases += [
            case(arg(1), kind=kind),
            case(arg(17, 3, 5, 2, low=-100, high=100), kind=kind),
            case(arg(64, 3, 5, permute=(0, 2, 1, 3)), kind=kind),
            case(arg(65, 3, type=F16, low=-4, high=4), kind=kind),
            case(arg(65, 3, type=BF16, low=-4, high=4), kind=kind),
            case(arg(1536, 1), kind=kind, perf=True),
            case(arg(1536, 512), kind=kind, perf=True),
        ]
    return cases


# kind -> (ops, x, gradient of the result) -> gradient of x; None where it is always zero
_GRADIENTS: dict[str, Callable[[OpBuilders, Tensor, Tensor], Tensor | None]] = {
    **dict.fromkeys(("sgn", "step", "floor", "ceil", "round", "trunc"), lambda ops, x, dy: None),
    "neg": lambda ops, x, dy: ops.unary(dy, kind="neg"),
    "abs": lambda ops, x, dy: ops.mul(dy, ops.unary(x, kind="sgn")),
    "relu": lambda ops, x, dy: ops.mul(dy, ops.unary(x, kind="step")),
    "elu": lambda ops, x, dy: ops.mul(
        dy, ops.unary(ops.clamp(x, min=-math.inf, max=0.0), kind="exp")
    ),
    "exp": lambda ops, x, dy: ops.mul(dy, ops.unary(x, kind="exp")),
    "expm1": lambda ops, x, dy: ops.mul(dy, ops.unary(x, kind="exp")),
    "softplus": lambda ops, x, dy: ops.mul(dy, ops.unary(x, kind="sigmoid")),
    "tanh": lambda ops, x, dy: ops.mul(
        dy, ops.scale(ops.sqr(ops.unary(x, kind="tanh")), s=-1.0, b=1.0)
    ),
    "sigmoid": lambda ops, x, dy: ops.mul(
        ops.mul(dy, ops.unary(x, kind="sigmoid")),
        ops.unary(ops.unary(x, kind="neg"), kind="sigmoid"),
    ),
    "silu": lambda ops, x, dy: ops.silu_back(dy, x),
    "gelu": lambda ops, x, dy: ops.gelu_back(dy, x),
    "gelu_quick": lambda ops, x, dy: ops.gelu_quick_back(dy, x),
    "gelu_erf": lambda ops, x, dy: ops.gelu_erf_back(dy, x),
}


def activation_gradient(ops: OpBuilders, kind: str, x: Tensor, dy: Tensor) -> Tensor | None:
    """The gradient of ``x`` where ``dy`` is that of ``unary(x, kind)``.

    Raises:
        UnsupportedOp: the kind has none.
    """
    if kind not in _GRADIENTS:
        raise UnsupportedOp(f"UNARY: {kind} has no gradient; there are {[*_GRADIENTS]}")
    return _GRADIENTS[kind](ops, x, dy)


def _infer_back(name: str, dy: Tensor, x: Tensor) -> Out:
    require(dy.ne == x.ne, name, f"dy '{dy.name}' {dy.ne} must have the sizes of x {x.ne}")
    return same(dy)


def _define_back(kind: str) -> Op:
    x = partial(arg, low=-8, high=8)
    return define_op(
        f"{kind.upper()}_BACK",
        src={"dy": source(F32), "x": source(F32)},
        infer=partial(_infer_back, f"{kind.upper()}_BACK"),
        reference=partial(reference, f"{kind}_back"),
        cases=lambda: [
            case(arg(1), x(1)),
            case(arg(65, 17, 3, 2), x(65, 17, 3, 2)),
            case(arg(17, 3, 5, permute=(0, 2, 1, 3)), x(17, 5, 3)),
            case(arg(17, 5, 3), arg(17, 3, 5, low=-100, high=100, permute=(0, 2, 1, 3))),
            case(arg(26400), x(26400)),
            case(arg(1536, 512), x(1536, 512), perf=True),
        ],
        inplace_ok=True,
        doc=f"The gradient of `x`, where `dy` is that of `{kind}` of `x`.",
    )


for _kind in SMOOTH:
    _define_back(_kind)


UNARY = define_op(
    "UNARY",
    src={"x": source(*ALL_FLOATS)},
    params={"kind": "", **_XIELU_PARAMS},
    infer=_infer,
    reference=_unary,
    cases=_cases,
    inplace_ok=True,
    max_nmse=half_nmse,
    doc="An element-wise function; `kind` says which.",
    gradients={"x": lambda ops, y, dy: activation_gradient(ops, y.op_params["kind"], y.src[0], dy)},
)


def unary(ctx: Context, x: Tensor, kind: str) -> Tensor:
    """An element-wise function of ``x`` (F32, F16 or BF16, any shape with rows without gaps).

    Args:
        kind: one of ``KINDS``.

    Raises:
        ShapeError, TypeMismatch: an unknown kind, or a source that does not fit.
    """
    return UNARY.build(ctx, x, kind=kind)


def xielu(
    ctx: Context, x: Tensor, alpha_n: float, alpha_p: float, beta: float, eps: float
) -> Tensor:
    """xIELU; ``alpha_n`` and ``alpha_p`` are the raw weights, as in ggml.

    Source: Huang and Schlag, "Deriving Activation Functions Using Integration".
    """
    positive_n, positive_p = reference("softplus", np.array([alpha_n, alpha_p]))
    return UNARY.build(
        ctx,
        x,
        kind=XIELU,
        alpha_n=beta + float(positive_n),
        alpha_p=float(positive_p),
        beta=float(beta),
        eps=float(eps),
    )


def silu_back(ctx: Context, dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of ``x``, where ``dy`` is that of ``silu(x)``; both F32 of one size."""
    return OPS["SILU_BACK"].build(ctx, dy, x)


def _builder(kind: str) -> Callable[[Context, Tensor], Tensor]:
    def build(ctx: Context, x: Tensor) -> Tensor:
        return unary(ctx, x, kind)

    build.__name__ = build.__qualname__ = kind
    build.__doc__ = f"``{kind}`` of every element; see ``unary``."
    return build


abs = _builder("abs")
sgn = _builder("sgn")
neg = _builder("neg")
step = _builder("step")
tanh = _builder("tanh")
elu = _builder("elu")
relu = _builder("relu")
sigmoid = _builder("sigmoid")
gelu = _builder("gelu")
gelu_quick = _builder("gelu_quick")
gelu_erf = _builder("gelu_erf")
silu = _builder("silu")
hardswish = _builder("hardswish")
hardsigmoid = _builder("hardsigmoid")
exp = _builder("exp")
expm1 = _builder("expm1")
softplus = _builder("softplus")
floor = _builder("floor")
ceil = _builder("ceil")
round = _builder("round")
trunc = _builder("trunc")
