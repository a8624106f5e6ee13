"""Multiplying by a number and adding one: SCALE.

y = scale(ctx, x, 0.125)
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import F32, arg, case, define_op, same, source
from .formulas import reference

__all__ = ["scale", "scale_bias"]

SCALE = define_op(
    "SCALE",
    src={"x": source(F32)},
    params={"s": 1.0, "b": 0.0},
    infer=lambda x, s, b: same(x),
    reference=lambda x, s, b: reference("scale", x, np.float32(s), np.float32(b)),
    cases=lambda: [
        case(arg(1), s=3.0),
        case(arg(65, 17, 3, 2), s=0.125, b=0.0),
        case(arg(17, 5), s=-2.0, b=1.5),
        case(arg(64, 3, 5, permute=(0, 2, 1, 3)), s=0.3, b=0.0),
        case(arg(576, 512), s=0.125, perf=True),
    ],
    inplace_ok=True,
    doc="`s * x + b`.",
    gradients={"x": lambda ops, y, dy: ops.scale(dy, s=y.op_params["s"])},
)


def scale(ctx: Context, x: Tensor, s: float) -> Tensor:
    """``s * x``, F32 of any shape."""
    return SCALE.build(ctx, x, s=float(s))


def scale_bias(ctx: Context, x: Tensor, s: float, b: float) -> Tensor:
    """``s * x + b``, F32 of any shape."""
    return SCALE.build(ctx, x, s=float(s), b=float(b))
