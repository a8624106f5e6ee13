"""Element-wise functions that are ops of their own: SQR, SQRT, LOG, SIN, COS, LEAKY_RELU, CLAMP.

    y = clamp(ctx, x, -1.0, 1.0)

NaN propagates through all of them (in ggml's CPU backend, CLAMP makes it ``max``).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import (
    ALL_FLOATS,
    BF16,
    F16,
    FLOATS,
    Arg,
    Array,
    Gradient,
    Op,
    OpBuilders,
    arg,
    case,
    define_op,
    half_nmse,
    same,
    source,
)
from .formulas import reference

__all__ = ["clamp", "cos", "leaky_relu", "log", "sin", "sqr", "sqrt"]


def _reference(name: str, x: Array, **params: float) -> Array:
    return reference(name, x, *map(np.float32, params.values()))


def _edges(*values: float) -> Arg:
    """A row that repeats ``values``, so that vectorised and scalar code gets each of them."""
    row = np.resize(np.array(values, np.float32), 67)
    return Arg((67,), values=lambda rng: row.reshape(1, 1, 1, -1))


_GRADIENTS: dict[str, Gradient] = {
    "SQR": lambda ops, y, dy: ops.scale(ops.mul(dy, y.src[0]), s=2.0),
    "SQRT": lambda ops, y, dy: ops.scale(ops.div(dy, y), s=0.5),
    "LOG": lambda ops, y, dy: ops.div(dy, y.src[0]),
    "SIN": lambda ops, y, dy: ops.mul(dy, ops.cos(y.src[0])),
    "COS": lambda ops, y, dy: ops.unary(ops.mul(dy, ops.sin(y.src[0])), kind="neg"),
}


def _define(name: str, low: float, high: float, inplace_ok: bool) -> Op:
    x = partial(arg, low=low, high=high)
    edges = {
        "SQR": (0.0, -0.0, 1e-30, -1e18, np.inf, -np.inf),
        "SQRT": (0.0, 1e-45, 1e-38, 3e38, np.inf),
        "LOG": (0.0, -0.0, 1e-45, 1e-38, 0.70710677, 0.7071068, 1.0, 1.0000001, 3e38, np.inf),
    }.get(name, (0.0, -0.0, 1e-30, 1.5707964, -3.1415927, 1e4, -1e4))
    return define_op(
        name,
        src={"x": source(*ALL_FLOATS)},
        infer=same,
        reference=partial(_reference, name.lower()),
        cases=lambda: [
            case(x(1)),
            case(x(65, 17, 3, 2)),
            case(x(17, 3, 5, permute=(0, 2, 1, 3))),
            case(x(17, 0)),
            case(x(65, 3, type=F16)),
            case(x(65, 3, type=BF16)),
            case(_edges(*edges)),
            case(x(1536, 512), perf=True),
        ],
        inplace_ok=inplace_ok,
        max_nmse=half_nmse,
        doc=f"`{name.lower()}` of every element.",
        gradients={"x": _GRADIENTS[name]},
    )


SQR = _define("SQR", -8, 8, True)
SQRT = _define("SQRT", 0, 100, True)
LOG = _define("LOG", 1e-3, 100, True)
SIN = _define("SIN", -20, 20, False)
COS = _define("COS", -20, 20, False)


def _leaky_relu_gradient(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    slope = y.op_params["negative_slope"]
    return ops.mul(dy, ops.scale(ops.unary(y.src[0], kind="step"), s=1 - slope, b=slope))


LEAKY_RELU = define_op(
    "LEAKY_RELU",
    src={"x": source(*FLOATS)},
    params={"negative_slope": 0.0},
    infer=lambda x, **slope: same(x),
    reference=partial(_reference, "leaky_relu"),
    cases=lambda: [
        case(arg(1), negative_slope=0.1),
        case(arg(65, 17, 3, 2), negative_slope=0.1),
        case(arg(17, 3, 5, permute=(0, 2, 1, 3)), negative_slope=-2.0),
        case(arg(65, 3, type=F16), negative_slope=0.25),
        case(arg(1536, 512), negative_slope=0.1, perf=True),
    ],
    max_nmse=half_nmse,
    doc="`x` where it is positive, `negative_slope * x` elsewhere.",
    gradients={"x": _leaky_relu_gradient},
)


def _clamp_gradient(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    x, p = y.src[0], y.op_params
    above = ops.unary(ops.scale(x, s=1.0, b=-p["min"]), kind="step")
    below = ops.unary(ops.scale(x, s=-1.0, b=p["max"]), kind="step")
    return ops.mul(ops.mul(dy, above), below)


CLAMP = define_op(
    "CLAMP",
    src={"x": source(*FLOATS)},
    params={"min": 0.0, "max": 0.0},
    infer=lambda x, **limits: same(x),
    reference=partial(_reference, "clamp"),
    cases=lambda: [
        case(arg(1), min=-0.5, max=0.5),
        case(arg(65, 17, 3, 2), min=-0.5, max=0.25),
        case(arg(17, 3, 5, permute=(0, 2, 1, 3)), min=0.0, max=float("inf")),
        case(arg(17, 3), min=0.5, max=-0.5),
        case(arg(65, 3, type=F16), min=-0.3, max=0.3),
        case(_edges(-np.inf, np.inf, 0.0, -2.0, 2.0), min=-1.0, max=1.0),
        case(arg(1536, 512), min=-0.5, max=0.5, perf=True),
    ],
    exact=True,
    inplace_ok=True,
    doc="`x`, but at most `max` and then at least `min`.",
    gradients={"x": _clamp_gradient},
)


def sqr(ctx: Context, x: Tensor) -> Tensor:
    """``x * x``; F32, F16 or BF16 of any shape, rows without gaps."""
    return SQR.build(ctx, x)


def sqrt(ctx: Context, x: Tensor) -> Tensor:
    """The square root, NaN of negative numbers; sources as ``sqr``."""
    return SQRT.build(ctx, x)


def log(ctx: Context, x: Tensor) -> Tensor:
    """The natural logarithm, NaN of negative numbers; sources as ``sqr``."""
    return LOG.build(ctx, x)


def sin(ctx: Context, x: Tensor) -> Tensor:
    """The sine of an angle in radians, to 1e-7 up to a million turns; sources as ``sqr``."""
    return SIN.build(ctx, x)


def cos(ctx: Context, x: Tensor) -> Tensor:
    """The cosine of an angle in radians, to 1e-7 up to a million turns; sources as ``sqr``."""
    return COS.build(ctx, x)


def leaky_relu(ctx: Context, x: Tensor, negative_slope: float) -> Tensor:
    """``x`` where positive, else ``negative_slope * x``; F32 or F16."""
    return LEAKY_RELU.build(ctx, x, negative_slope=float(negative_slope))


def clamp(ctx: Context, x: Tensor, min: float, max: float) -> Tensor:
    """``x`` limited to ``min`` .. ``max`` (``min`` wins where they cross); F32 or F16.

    A new tensor, as in ggml since its ``clamp_inplace``; older versions wrote over ``x``.
    """
    return CLAMP.build(ctx, x, min=float(min), max=float(max))
