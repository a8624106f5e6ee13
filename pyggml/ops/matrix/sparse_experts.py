"""Row-sparse products with chosen experts: MUL_MAT_ID_SPARSE, AXPY_ID.

    gate = mul_mat_id(ctx, gate_exps, x, ids)                  # [n_ff, n_used, T]
    up = mul_mat_id_sparse(ctx, up_exps, x, ids, gate, 1e-45)  # 0 where the gate is not positive
    y = glu_split(ctx, gate, up, "reglu")
    out = axpy_id(ctx, down_t_exps, y, ids)                    # [n_embd, n_used, T]

Rows of neurons whose score is below the threshold are not read by the first op, rows whose value
is 0 not by the second. ``slots`` are those of MUL_MAT_ID. An id that names no expert and a NaN
score end the compute with an error.
Source: PowerInfer, ``FUSED_SPARSE_MOE`` of SmallThinker.
"""

from __future__ import annotations

import math

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
    source,
)
from .experts import chosen_matrices, random_ids
from .sparse import active

__all__ = ["axpy_id", "mul_mat_id_sparse"]


def _check_ids(op: str, as_: Tensor, b: Tensor, ids: Tensor, slots: Tensor | None) -> None:
    if slots is not None:
        require(slots.n_dims == 1, op, f"slots {slots.ne} must have one dimension")
    require(as_.ne[3] == b.ne[3] == 1, op, f"as {as_.ne} and b {b.ne} must have three dimensions")
    require(
        ids.ne[1:] == (b.ne[2], 1, 1) and b.ne[1] > 0 and ids.ne[0] % b.ne[1] == 0,
        op,
        f"ids {ids.ne} must be [a multiple of {b.ne[1]}, {b.ne[2]}] for b {b.ne}",
    )


def _infer_mul_mat_id_sparse(
    as_: Tensor, b: Tensor, ids: Tensor, idx: Tensor, slots: Tensor | None, threshold: float
) -> Out:
    op = "MUL_MAT_ID_SPARSE"
    _check_ids(op, as_, b, ids, slots)
    require(not math.isnan(threshold), op, "the threshold is not a number")
    require(
        as_.ne[0] == b.ne[0],
        op,
        f"rows of as '{as_.name}' {as_.ne} have {as_.ne[0]} elements, of b '{b.name}' {b.ne} "
        f"{b.ne[0]}",
    )
    ne = (as_.ne[1], ids.ne[0], b.ne[2], 1)
    require(idx.ne == ne, op, f"scores idx '{idx.name}' are {idx.ne}, want {ne}")
    return Out(F32, ne)


def _infer_axpy_id(as_: Tensor, b: Tensor, ids: Tensor, slots: Tensor | None) -> Out:
    op = "AXPY_ID"
    _check_ids(op, as_, b, ids, slots)
    require(
        ids.ne[0] == b.ne[1] and as_.ne[1] == b.ne[0],
        op,
        f"b '{b.name}' {b.ne} must be [{as_.ne[1]}, {ids.ne[0]}, T] for as '{as_.name}' {as_.ne} "
        f"and ids {ids.ne}",
    )
    return Out(F32, (as_.ne[0], b.ne[1], b.ne[2], 1))


def _mul_mat_id_sparse(
    as_: Array, b: Array, ids: Array, idx: Array, slots: Array | None, threshold: float
) -> Array:
    at = chosen_matrices(ids, slots, as_.shape[1])  # [T, n_used]
    x = np.tile(b[0], (1, at.shape[1] // b.shape[2], 1))  # [T, n_used, k]
    dots = np.matmul(as_[0][at], x[..., None])[..., 0]
    out: Array = np.where(active(idx[0], threshold), dots, 0)[None]
    return out


def _axpy_id(as_: Array, b: Array, ids: Array, slots: Array | None) -> Array:
    picked = as_[0][chosen_matrices(ids, slots, as_.shape[1])]  # [T, n_used, F, E]
    out: Array = np.matmul(b[0][:, :, None], picked)[None, :, :, 0]
    return out


def _read_bytes(node: Tensor) -> int:
    """Bytes of the matrices that are read if all neurons are active; their number is data."""
    as_, ids = node.src[0], node.src[2]
    assert as_ is not None and ids is not None
    return as_.nbytes // max(1, as_.ne[2]) * min(as_.ne[2], ids.nelements)


_SHAPES = (  # n_embd, n_ff, n_expert, n_used, n_tokens, threshold of scores in -1..1
    (64, 33, 4, 2, 1, 0.0), (64, 300, 3, 2, 2, 0.6), (96, 70, 2, 2, 9, 0.8),
    (192, 530, 3, 1, 40, 0.4), (64, 17, 5, 3, 1, -math.inf), (64, 17, 5, 3, 6, math.inf),
)  # fmt: skip


def _cases(transposed: bool) -> list[Case]:
    def one(
        k: int, f: int, n_expert: int, n_used: int, n: int, threshold: float,
        type: GGMLType = F32, *, cached: bool = False, perf: bool = False,
    ) -> Case:  # fmt: skip
        n_slots = n_expert + 2 * cached
        matrices, ids = arg(k, f, n_slots, type=type), random_ids(n_used, n, n_expert)
        slots = None
        if cached:
            slots = Arg((n_expert,), I32, values=lambda rng: rng.permutation(n_slots)[:n_expert])
        if transposed:
            return case(matrices, arg(f, n_used, n), ids, slots, perf=perf)
        scores = arg(f, n_used, n)
        return case(matrices, arg(k, 1, n), ids, scores, slots, threshold=threshold, perf=perf)

    cases = [one(3, 17, 2, 2, 3, 0.5), one(65, 33, 4, 2, 5, 0.0)]
    if transposed:
        cases.append(one(64, 0, 3, 2, 1, 0.0))
    else:
        cases.append(
            case(arg(64, 17, 4), arg(64, 2, 7), random_ids(4, 7, 4), arg(17, 4, 7), threshold=0.1)
        )
    for type in (*ALL_FLOATS, *QUANTS):
        cases += [one(*shape, type) for shape in _SHAPES]
    for type in OTHER_QUANTS:
        cases += [one(512, 100, 3, 2, n, 0.2, type) for n in (1, 7)]
    for type in (F32, F16, GGMLType.Q4_0):
        cases += [one(64, 100, 3, 2, n, 0.2, type, cached=True) for n in (1, 7)]
    for type in (F16, GGMLType.Q4_0, GGMLType.Q8_0):
        for threshold in (0.8, 0.2):
            cases += [one(2560, 768, 64, 6, n, threshold, type, perf=True) for n in (1, 64)]
    return cases


_MATRICES = {
    "as": source(*ALL_FLOATS, quantized=True), "b": source(F32), "ids": source(I32, gaps=True)
}  # fmt: skip

MUL_MAT_ID_SPARSE = define_op(
    "MUL_MAT_ID_SPARSE",
    src={**_MATRICES, "idx": source(F32), "slots?": source(I32)},
    params={"threshold": 0.0},
    infer=_infer_mul_mat_id_sparse,
    reference=_mul_mat_id_sparse,
    cases=lambda: _cases(transposed=False),
    max_nmse=lambda node: 1e-7 if node.src[0].type == F32 else 5e-4,
    cost=lambda node: Cost(
        node.nbytes + node.src[1].nbytes + node.src[3].nbytes + _read_bytes(node),
        node.nelements * node.src[0].ne[0],
    ),
    doc="`MUL_MAT_ID` where the score `idx` reaches the threshold, zero elsewhere.",
)

AXPY_ID = define_op(
    "AXPY_ID",
    src={**_MATRICES, "slots?": source(I32)},
    infer=_infer_axpy_id,
    reference=_axpy_id,
    cases=lambda: _cases(transposed=True),
    cost=lambda node: Cost(
        node.nbytes + node.src[1].nbytes + _read_bytes(node),
        node.nelements * node.src[1].ne[0],
    ),
    doc="Sums of the rows of the matrices of `as` that `ids` name, each times its value in `b`.",
)


def mul_mat_id_sparse(
    ctx: Context, as_: Tensor, b: Tensor, ids: Tensor, idx: Tensor, threshold: float = 0.0,
    slots: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``mul_mat_id(as_, b, ids, slots)`` of active neurons, exact zeros for the others.

    Shape:
        ``as_`` [E, F, n_expert], b F32 [E, n_b, T], ids I32 [n_used, T], where n_b divides n_used,
        idx F32 [F, n_used, T] -> F32 [F, n_used, T]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit, or rows have gaps.
    """
    return MUL_MAT_ID_SPARSE.build(ctx, as_, b, ids, idx, slots, threshold=float(threshold))


def axpy_id(
    ctx: Context, as_: Tensor, b: Tensor, ids: Tensor, slots: Tensor | None = None
) -> Tensor:
    """For each use of an expert the sum of ``b[t, u, j] * as_[ids[t, u], j]``, in the order of j.

    Args:
        slots: see ``mul_mat_id``.

    Shape:
        ``as_`` [E, F, n_expert], b F32 [F, n_used, T], ids I32 [n_used, T] -> F32 [E, n_used, T]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit, or rows have gaps.
    """
    return AXPY_ID.build(ctx, as_, b, ids, slots)
