"""Mixture of experts: MUL_MAT_ID and ADD_ID, where each token chooses some of several matrices.

    up = mul_mat_id(ctx, up_exps, x, ids)          # [n_ff, n_expert_used, n_tokens]
    up = add_id(ctx, up, up_exps_bias, ids)

``ids`` are data, so the same graph serves any routing. An id that names no expert ends the compute
with an error.
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...dtype import GGMLType
from ...tensor import Tensor
from ..op import (
    ALL_FLOATS,
    F16,
    F32,
    I32,
    OTHER_QUANTS,
    QUANTS,
    Arg,
    Array,
    Case,
    Cost,
    Out,
    arg,
    case,
    define_op,
    require,
    same,
    source,
)

__all__ = ["add_id", "mul_mat_id"]

BF16 = GGMLType.BF16
_IDS = source(I32, gaps=True)


def _infer_mul_mat_id(a: Tensor, b: Tensor, ids: Tensor) -> Out:
    op = "MUL_MAT_ID"
    require(
        a.ne[0] == b.ne[0],
        op,
        f"rows of as '{a.name}' {a.ne} have {a.ne[0]} elements, of b '{b.name}' {b.ne} {b.ne[0]}",
    )
    require(a.ne[3] == b.ne[3] == 1, op, f"as {a.ne} and b {b.ne} must have three dimensions")
    require(
        ids.ne[1:] == (b.ne[2], 1, 1) and b.ne[1] > 0 and ids.ne[0] % b.ne[1] == 0,
        op,
        f"ids {ids.ne} must be [a multiple of {b.ne[1]}, {b.ne[2]}] for b {b.ne}",
    )
    return Out(F32, (a.ne[1], ids.ne[0], b.ne[2], 1))


def _checked(ids: Array, n_expert: int) -> Array:
    """The ids as [n_tokens, n_used]. Raises: IndexError."""
    ids = ids[0, 0]
    if ids.size and (ids.min() < 0 or ids.max() >= n_expert):
        raise IndexError(f"expert {ids.min()}..{ids.max()} of {n_expert}")
    return ids


def _mul_mat_id(a: Array, b: Array, ids: Array) -> Array:
    picked = a[0][_checked(ids, a.shape[1])]  # [n_tokens, n_used, m, k]
    x = np.tile(b[0], (1, ids.shape[3] // b.shape[2], 1))  # [n_tokens, n_used, k]
    out: Array = np.matmul(picked, x[..., None])[..., 0]
    return out[None]


def _ids(n_used: int, n_tokens: int, n_expert: int) -> Arg:
    """Random experts, different ones for each token where there are enough."""

    def values(rng: np.random.Generator) -> Array:
        if n_used > n_expert:
            return rng.integers(0, n_expert, (n_tokens, n_used))
        return np.stack([rng.permutation(n_expert)[:n_used] for _ in range(n_tokens)])

    return Arg((n_used, n_tokens), I32, values=values)


def _routed(
    k: int, m: int, n_expert: int, n_used: int, n_tokens: int, type: GGMLType = F32,
    shared: bool = False, perf: bool = False,
) -> Case:  # fmt: skip
    """A case with one row of b a token (``shared``) or one a use."""
    return case(
        arg(k, m, n_expert, type=type),
        arg(k, 1 if shared else n_used, n_tokens),
        _ids(n_used, n_tokens, n_expert),
        perf=perf,
    )


MUL_MAT_ID = define_op(
    "MUL_MAT_ID",
    src={"as": source(*ALL_FLOATS, quantized=True), "b": source(F32), "ids": _IDS},
    infer=_infer_mul_mat_id,
    reference=_mul_mat_id,
    cases=lambda: [
        _routed(1, 1, 1, 1, 1),
        _routed(3, 17, 2, 1, 5),
        _routed(65, 33, 4, 3, 9),
        _routed(65, 33, 4, 3, 9, shared=True),
        _routed(33, 5, 2, 5, 3),
        case(arg(32, 17, 4), arg(32, 2, 7), _ids(6, 7, 4)),
        case(arg(64, 4, 17, permute=(0, 2, 1, 3)), arg(64, 2, 3), _ids(2, 3, 4)),
        case(arg(64, 17, 4), arg(64, 3, 2, permute=(0, 2, 1, 3)), _ids(2, 3, 4)),
        *(_routed(256, 17, 4, 2, 3, type) for type in OTHER_QUANTS),
        *(
            _routed(64, 17, n_expert, n_used, n_tokens, type, shared)
            for type in (F32, F16, BF16, *QUANTS)
            for n_expert, n_used, n_tokens, shared in (
                (8, 2, 1, True), (4, 2, 1, False), (4, 1, 32, False), (4, 4, 45, True),
                (8, 2, 129, False),
            )
        ),
        *(
            _routed(2048, 768, 128, 8, n_tokens, type, True, perf=True)
            for type in (F16, BF16, *QUANTS)
            for n_tokens in (1, 64)
        ),
    ],
    max_nmse=lambda node: 1e-7 if node.src[0].type == F32 else 5e-4,
    cost=lambda node: Cost(
        node.nbytes
        + node.src[1].nbytes
        + node.src[0].nbytes // max(1, node.src[0].ne[2])
        * min(node.src[0].ne[2], node.src[2].nelements),
        node.nelements * node.src[0].ne[0],
    ),
    doc="Dot products of each row of `b` with all rows of the matrices of `as` that `ids` name.",
)  # fmt: skip


def mul_mat_id(ctx: Context, as_: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """Each token's rows times the matrices of the experts that it uses.

    Shape:
        ``as_`` [k, m, n_expert], b F32 [k, n_b, n_tokens], ids I32 [n_used, n_tokens], where n_b
        divides n_used -> F32 [m, n_used, n_tokens]; use u of a token reads its row u % n_b

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit, or rows have gaps.
    """
    return MUL_MAT_ID.build(ctx, as_, b, ids)


def _infer_add_id(a: Tensor, b: Tensor, ids: Tensor) -> Out:
    op = "ADD_ID"
    require(a.ne[0] == b.ne[0], op, f"rows of a {a.ne} and b {b.ne} must be of one length")
    require(
        ids.ne == (a.ne[1], a.ne[2], 1, 1) and a.ne[3] == b.ne[2] == b.ne[3] == 1,
        op,
        f"ids {ids.ne} must be [{a.ne[1]}, {a.ne[2]}] for a {a.ne}, and b {b.ne} a matrix",
    )
    return same(a)


ADD_ID = define_op(
    "ADD_ID",
    src={"a": source(F32), "b": source(F32), "ids": _IDS},
    infer=_infer_add_id,
    reference=lambda a, b, ids: a + b[0, 0][_checked(ids, b.shape[2])],
    cases=lambda: [
        case(arg(1, 1, 1), arg(1, 1), _ids(1, 1, 1)),
        case(arg(65, 3, 17), arg(65, 8), _ids(3, 17, 8)),
        case(arg(64, 9, 4, permute=(0, 2, 1, 3)), arg(64, 5), _ids(4, 9, 5)),
        case(arg(2880, 4, 32), arg(2880, 32), _ids(4, 32, 32), perf=True),
    ],
    inplace_ok=True,
    doc="Adds to each row of `a` the row of `b` that `ids` names.",
)


def add_id(ctx: Context, a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """``a`` plus the rows of ``b`` that ``ids`` name: the bias of the expert that a row went to.

    Shape:
        a F32 [n, n_used, n_tokens], b F32 [n, n_expert], ids I32 [n_used, n_tokens] -> a's

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit, or rows have gaps.
    """
    return ADD_ID.build(ctx, a, b, ids)
