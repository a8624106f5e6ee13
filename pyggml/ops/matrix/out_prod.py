"""OUT_PROD: sums of outer products, as in the gradient of a matmul.

y = out_prod(ctx, a, b)                        # b.T @ a in NumPy's order
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import (
    ALL_FLOATS,
    BF16,
    F16,
    F32,
    OTHER_QUANTS,
    QUANTS,
    Array,
    Cost,
    OpBuilders,
    Out,
    arg,
    case,
    define_op,
    require,
    source,
)
from .matmul import summed_matrices

__all__ = ["out_prod"]


def _infer(a: Tensor, b: Tensor) -> Out:
    op = "OUT_PROD"
    require(
        a.ne[1] == b.ne[1], op, f"a {a.ne} and b {b.ne} have {a.ne[1]} and {b.ne[1]} rows to sum"
    )
    require(
        a.ne[2] > 0 and a.ne[3] > 0 and b.ne[2] % a.ne[2] == 0 and b.ne[3] % a.ne[3] == 0,
        op,
        f"ne[2:] of b {b.ne[2:]} must be multiples of a's {a.ne[2:]}",
    )
    return Out(F32, (a.ne[0], b.ne[0], b.ne[2], b.ne[3]))


def _out_prod(a: Array, b: Array) -> Array:
    a = a.repeat(b.shape[0] // a.shape[0], axis=0).repeat(b.shape[1] // a.shape[1], axis=1)
    out: Array = np.matmul(b.swapaxes(2, 3), a)  # [ne3, ne2, p, m]
    return out


def _gradient_of_a(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    a, b = y.src
    assert a is not None and b is not None
    return summed_matrices(ops, ops.out_prod(dy, ops.transpose(b)), a)


def _gradient_of_b(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    out: Tensor = ops.mul_mat(y.src[0], dy)  # [n, p, B2, B3]
    return ops.transpose(out)


OUT_PROD = define_op(
    "OUT_PROD",
    src={"a": source(*ALL_FLOATS, quantized=True), "b": source(F32, gaps=True)},
    infer=_infer,
    reference=_out_prod,
    cases=lambda: [
        case(arg(1, 1), arg(1, 1)),
        case(arg(65, 17), arg(33, 17)),
        case(arg(3, 129), arg(1, 129)),
        case(arg(17, 5, 3, 2), arg(9, 5, 3, 2)),
        case(arg(17, 5, 1, 2), arg(9, 5, 3, 4)),
        case(arg(65, 17), arg(17, 33, permute=(1, 0, 2, 3))),
        case(arg(32, 3, 7, permute=(0, 2, 1, 3)), arg(9, 7, 3)),
        case(arg(150, 600), arg(300, 600)),  # several pieces, panels and blocks
        case(arg(150, 300, 2), arg(300, 70, 4, permute=(1, 0, 2, 3))),
        case(arg(256, 300, type=QUANTS[1]), arg(300, 300)),
        *(case(arg(65, 17, type=t), arg(33, 17)) for t in (F16, BF16)),
        *(case(arg(64, 17, 1, 2, type=t), arg(5, 17, 2, 2)) for t in QUANTS),
        *(case(arg(256, 5, type=t), arg(3, 5)) for t in OTHER_QUANTS),
        case(arg(256, 16), arg(16, 16), perf=True),
        case(arg(576, 512), arg(576, 512), perf=True),
    ],
    max_nmse=lambda node: 1e-7 if node.src[0].type == F32 else 5e-4,
    cost=lambda node: Cost(
        node.nbytes + node.src[0].nbytes + node.src[1].nbytes, node.nelements * node.src[0].ne[1]
    ),
    doc="Sums over rows of the outer products of `a`'s rows with `b`'s.",
    gradients={"a": _gradient_of_a, "b": _gradient_of_b},
)


def out_prod(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """Sums of the outer products of rows: ``b.T @ a`` in NumPy's order.

    Shape:
        a [m, n, A2, A3], b F32 [p, n, B2, B3] of any strides, where A2 divides B2 and A3 divides
        B3 -> F32 [m, p, B2, B3]; matrix i of b is multiplied by matrix i * A2 // B2 of a

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit, or rows of a have gaps.
    """
    return OUT_PROD.build(ctx, a, b)
