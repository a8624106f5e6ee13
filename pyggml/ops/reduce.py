"""Rows to single values: ARGMAX.

best = argmax(ctx, logits)                     # I32 [n_tokens]
"""

from __future__ import annotations

import numpy as np

from ..context import Context
from ..tensor import Tensor
from .op import F32, I32, Array, Out, arg, case, define_op, require, require_rows, require_type


def _infer(x: Tensor) -> Out:
    require_type("ARGMAX", "x", x, (F32,))
    require_rows("ARGMAX", "x", x)
    require(
        x.ne[2] == x.ne[3] == 1 and x.ne[0] > 0, "ARGMAX", f"x {x.ne} must be a matrix [n, rows]"
    )
    return Out(I32, (x.ne[1], 1, 1, 1))


def _ties(rng: np.random.Generator) -> Array:
    return rng.integers(0, 3, (17, 65)).astype(np.float32)


ARGMAX = define_op(
    "ARGMAX",
    src=("x",),
    infer=_infer,
    reference=lambda x: x[0, 0].argmax(axis=-1).astype(np.int32).reshape(1, 1, 1, -1),
    cases=[
        case(arg(1)),
        case(arg(3, 17)),
        case(arg(65, 5)),
        case(arg(65, 17, values=_ties)),
        case(arg(65, 17, low=-3, high=-2)),
        case(arg(49152, 1), perf=True),
        case(arg(49152, 64), perf=True),
    ],
    exact=True,
    doc="The place of the largest element of each row; of equal ones the first.",
)


def argmax(ctx: Context, x: Tensor) -> Tensor:
    """The place of the largest element of each row; of equal ones the first.

    Shape:
        x F32 [n, rows] -> I32 [rows]

    Raises:
        ShapeError, TypeMismatch: not an F32 matrix.
    """
    return ARGMAX.build(ctx, x)
