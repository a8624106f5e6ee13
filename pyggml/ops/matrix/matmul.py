"""Matrix multiplication: MUL_MAT.

    y = mul_mat(ctx, w, x)                         # x @ w.T in NumPy's order

Weights are rows along ``ne[0]``; they may be quantized. A backend may round the other side to the
weight's partner type (int8 for quantized weights), which the tolerance allows for.
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...dtype import GGMLType
from ...errors import ShapeError
from ...tensor import Tensor
from ..op import (
    ALL_FLOATS,
    F16,
    F32,
    OTHER_QUANTS,
    QUANTS,
    Array,
    Case,
    Cost,
    OpBuilders,
    Out,
    arg,
    case,
    define_op,
    source,
)

__all__ = ["mul_mat"]

BF16 = GGMLType.BF16


def _infer(a: Tensor, b: Tensor, many: bool) -> Out:
    op = "MUL_MAT"
    if a.ne[0] != b.ne[0]:
        raise ShapeError(
            f"{op}: rows of a '{a.name}' {a.ne} have {a.ne[0]} elements, of b '{b.name}' {b.ne} "
            f"{b.ne[0]}"
        )
    if a.ne[2] <= 0 or a.ne[3] <= 0 or b.ne[2] % a.ne[2] or b.ne[3] % a.ne[3]:
        raise ShapeError(f"{op}: ne[2:] of b {b.ne[2:]} must be multiples of a's {a.ne[2:]}")
    return Out(F32, (a.ne[1], b.ne[1], b.ne[2], b.ne[3]))


def _mul_mat(a: Array, b: Array, many: bool) -> Array:
    a = a.repeat(b.shape[0] // a.shape[0], axis=0).repeat(b.shape[1] // a.shape[1], axis=1)
    out: Array = np.matmul(b, a.swapaxes(2, 3))  # [ne3, ne2, n, m]
    return out


def _cost(node: Tensor) -> Cost:
    a, b, *_ = node.src
    assert a is not None and b is not None
    return Cost(node.nbytes + a.nbytes + b.nbytes, node.nelements * a.ne[0])


def _cases() -> list[Case]:
    cases = [
        case(arg(k, m), arg(k, n))
        for k, m, n in (
            (1, 1, 1), (3, 17, 1), (17, 3, 5), (65, 33, 2), (65, 17, 9), (128, 65, 33),
        )
    ]  # fmt: skip
    for t in (F32, F16, BF16, *QUANTS):
        cases += [case(arg(64, 17, type=t), arg(64, n)) for n in (1, 2, 3, 4, 5, 8, 9, 17)]
        if t in (F16, BF16):
            cases += [case(arg(96, 17, type=t), arg(96, n), many=True) for n in (1, 17)]
        low = 0 if t in (GGMLType.Q5_0, GGMLType.Q5_1) else -1  # their one sum would cancel
        cases += [
            case(arg(32, 1, type=t, low=low), arg(32, 1, low=low)),
            case(arg(96, 65, type=t), arg(96, 33)),
            case(arg(256, 16, 3, 2, type=t), arg(256, 1, 3, 2)),
            case(arg(64, 17, 2, 1, type=t), arg(64, 3, 4, 3)),
            case(arg(64, 5, 17, type=t, permute=(0, 2, 1, 3)), arg(64, 5, 3, permute=(0, 2, 1, 3))),
        ]
    cases.append(case(arg(65, 17, type=BF16), arg(65, 3)))
    for t in (F32, F16, BF16, *QUANTS):
        for half in (F16, BF16):
            cases.append(case(arg(64, 17, 1, 2, type=t), arg(64, 5, 3, 2, type=half)))
    for t in OTHER_QUANTS:
        cases += [case(arg(512, 17, type=t), arg(512, n)) for n in (1, 5)]
    t = GGMLType.IQ3_S
    cases += [
        case(arg(256, 33, 2, 1, type=t), arg(256, 1, 4, 3)),
        case(arg(256, 5, 17, type=t, permute=(0, 2, 1, 3)), arg(256, 9, 5, type=F16)),
        case(arg(65, 17, type=F16), arg(65, 3, type=F16)),
        case(arg(64, 17, 3, type=F16), arg(64, 3, 5, type=F16, permute=(0, 2, 1, 3))),
    ]
    for t in (F16, BF16, *QUANTS):
        for k, m in ((576, 576), (576, 192), (576, 1536), (1536, 576), (576, 49152), (4096, 4096)):
            cases += [case(arg(k, m, type=t), arg(k, n), perf=True) for n in (1, 64)]
    return cases


def summed_matrices(ops: OpBuilders, da: Tensor, a: Tensor) -> Tensor:
    """A gradient [k, m, B2, B3], summed over the matrices that share a matrix of ``a``."""
    k, m, a2, a3 = a.ne
    b2, b3 = da.ne[2:]
    if b2 != a2:  # matrix i of a goes with matrices i * B2 // A2 and the following ones
        da = ops.reshape(da, ne=(k * m, b2 // a2, a2 * b3, 1))
        da = ops.reshape(ops.repeat_back(da, ne=(k * m, 1, a2 * b3, 1)), ne=(k, m, a2, b3))
    if b3 != a3:
        da = ops.reshape(da, ne=(k * m * a2, b3 // a3, a3, 1))
        da = ops.reshape(ops.repeat_back(da, ne=(k * m * a2, 1, a3, 1)), ne=a.ne)
    return da


def _gradient_of_a(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    """``b dy`` for each matrix of ``b``, summed over the matrices that share a matrix of ``a``."""
    a, b = y.src
    assert a is not None and b is not None
    return summed_matrices(ops, ops.out_prod(b, dy), a)


MUL_MAT = define_op(
    "MUL_MAT",
    src={"a": source(*ALL_FLOATS, quantized=True), "b": source(*ALL_FLOATS)},
    params={"many": False},
    infer=_infer,
    reference=_mul_mat,
    cases=_cases,
    max_nmse=lambda node: 1e-7 if node.src[0].type == F32 == node.src[1].type else 5e-4,
    cost=_cost,
    doc="Dot products of the rows of `a` with the rows of `b`.",
    gradients={
        "a": _gradient_of_a,
        "b": lambda ops, y, dy: ops.out_prod(y.src[0], ops.transpose(dy)),
    },
)


def mul_mat(ctx: Context, a: Tensor, b: Tensor, many: bool = False) -> Tensor:
    """Dot products of all rows of ``a`` with all rows of ``b``: ``b @ a.T`` in NumPy's order.

    Args:
        many: ``b`` usually has many rows, such as the tokens of whole texts. A backend may then
            add in another order, which is faster for many rows and slower for one. It should be
            the same in all products with ``a``, so that their bits are.

    Shape:
        a [k, m, A2, A3], b F32, F16 or BF16 [k, n, B2, B3], where A2 divides B2 and A3 divides B3
        -> F32 [m, n, B2, B3]; matrix i of b is multiplied by matrix i * A2 // B2 of a

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit, or rows have gaps.
    """
    return MUL_MAT.build(ctx, a, b, many=many)
