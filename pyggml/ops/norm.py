"""Normalisation of rows: RMS_NORM.

y = mul(ctx, rms_norm(ctx, x, 1e-5), weight)
"""

from __future__ import annotations

import numpy as np

from ..context import Context
from ..tensor import Tensor
from .op import F32, Array, Out, arg, case, define_op, require, require_rows, require_type, same


def _infer_rms_norm(x: Tensor, eps: float) -> Out:
    require_type("RMS_NORM", "x", x, (F32,))
    require_rows("RMS_NORM", "x", x)
    require(eps >= 0, "RMS_NORM", f"eps is {eps}, want 0 or more")
    return same(x)


def _rms_norm(x: Array, eps: float) -> Array:
    mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float64)
    return x / np.sqrt(mean + eps)


RMS_NORM = define_op(
    "RMS_NORM",
    src=("x",),
    params={"eps": 1e-5},
    infer=_infer_rms_norm,
    reference=_rms_norm,
    cases=[
        case(arg(1), eps=1e-6),
        case(arg(3, 5), eps=1e-6),
        case(arg(17, 3), eps=0.1),
        case(arg(65, 5, 4, 3), eps=1e-6),
        case(arg(64, 3, 5, permute=(0, 2, 1, 3)), eps=1e-5),
        case(arg(65, 2, low=-1e-4, high=1e-4), eps=1e-5),
        case(arg(576, 1), eps=1e-5, perf=True),
        case(arg(576, 512), eps=1e-5, perf=True),
        case(arg(4096, 7), eps=1e-5, perf=True),
    ],
    inplace_ok=True,
    doc="Rows divided by the root of their mean square.",
)


def rms_norm(ctx: Context, x: Tensor, eps: float = 1e-5) -> Tensor:
    """``x / sqrt(mean(x * x) + eps)`` for each row.

    Shape:
        x F32 [n, ne1, ne2, ne3] -> the same

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", equation 4.
    """
    return RMS_NORM.build(ctx, x, eps=float(eps))
