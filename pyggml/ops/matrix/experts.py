"""Mixture of experts: MUL_MAT_ID and ADD_ID, where each token chooses some of several matrices.

MUL_MAT_ID_BACK is the gradient of the matrices.

    up = mul_mat_id(ctx, up_exps, x, ids)          # [n_ff, n_expert_used, n_tokens]
    up = add_id(ctx, up, up_exps_bias, ids)

``ids`` are data, so the same graph serves any routing. An id that names no expert ends the compute
with an error. With ``slots`` the matrices of an expert may be anywhere among those of ``as``, which
then need not have all experts (a cache of experts); such a table is data too.
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
    OpBuilders,
    Out,
    arg,
    case,
    define_op,
    require,
    same,
    source,
)

__all__ = ["add_id", "mul_mat_id", "mul_mat_id_back"]

BF16 = GGMLType.BF16
_IDS = source(I32, gaps=True)


def _infer_mul_mat_id(a: Tensor, b: Tensor, ids: Tensor, slots: Tensor | None) -> Out:
    op = "MUL_MAT_ID"
    if slots is not None:
        require(slots.n_dims == 1, op, f"slots {slots.ne} must have one dimension")
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


def chosen_experts(ids: Array, n_expert: int) -> Array:
    """The ids as [n_tokens, n_used]. Raises: IndexError."""
    ids = ids[0, 0]
    if ids.size and (ids.min() < 0 or ids.max() >= n_expert):
        raise IndexError(f"expert {ids.min()}..{ids.max()} of {n_expert}")
    return ids


def chosen_matrices(ids: Array, slots: Array | None, n: int) -> Array:
    """The matrices of the experts among ``n``, as [n_tokens, n_used]. Raises: IndexError."""
    at: Array = np.arange(n) if slots is None else slots[0, 0, 0]
    at = at[chosen_experts(ids, len(at))]
    if at.size and (at.min() < 0 or at.max() >= n):
        raise IndexError(f"slot {at.min()}..{at.max()} of {n}")
    return at


def _mul_mat_id(a: Array, b: Array, ids: Array, slots: Array | None) -> Array:
    at = chosen_matrices(ids, slots, a.shape[1])  # [n_tokens, n_used]
    picked = a[0][at]  # [n_tokens, n_used, m, k]
    x = np.tile(b[0], (1, ids.shape[3] // b.shape[2], 1))  # [n_tokens, n_used, k]
    out: Array = np.matmul(picked, x[..., None])[..., 0]
    return out[None]


def random_ids(n_used: int, n_tokens: int, n_expert: int) -> Arg:
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
        random_ids(n_used, n_tokens, n_expert),
        perf=perf,
    )


def _numbers(ops: OpBuilders, y: Tensor) -> Tensor:
    """I32 [n_used, n_tokens], the index of each use's matrix: the ids, or their slots."""
    ids, slots = y.src[2:]
    assert ids is not None
    if slots is None:
        return ids
    table = ops.reshape(slots, ne=(1, slots.ne[0], 1, 1))
    flat = ops.reshape(ops.contiguous(ids), ne=(ids.nelements, 1, 1, 1))
    return ops.reshape(ops.get_rows(table, flat), ne=ids.ne)


def _gradient_of_rows(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    """``dy`` times the transposed matrices, summed over the uses that share a row."""
    matrices, b = y.src[:2]
    assert matrices is not None and b is not None
    if matrices.type is not F32:
        matrices = ops.cpy(matrices, type=F32)
    transposed = ops.cont(ops.transpose(matrices))  # [m, k, n_expert]
    rows: Tensor = ops.mul_mat_id(transposed, dy, _numbers(ops, y))  # [k, n_used, n_tokens]
    return ops.summed_to(rows, b)


def _cached(n_tokens: int, type: GGMLType) -> Case:
    """A case with a cache of 7 slots for 5 experts, of which each token uses 2."""
    slots = Arg((5,), I32, values=lambda rng: rng.permutation(7)[:5])
    return case(arg(64, 17, 7, type=type), arg(64, 1, n_tokens), random_ids(2, n_tokens, 5), slots)


MUL_MAT_ID = define_op(
    "MUL_MAT_ID",
    src={
        "as": source(*ALL_FLOATS, quantized=True), "b": source(F32), "ids": _IDS,
        "slots?": source(I32),
    },
    infer=_infer_mul_mat_id,
    reference=_mul_mat_id,
    cases=lambda: [
        _routed(1, 1, 1, 1, 1),
        _routed(3, 17, 2, 1, 5),
        _routed(65, 33, 4, 3, 9),
        _routed(65, 33, 4, 3, 9, shared=True),
        _routed(33, 5, 2, 5, 3),
        case(arg(32, 17, 4), arg(32, 2, 7), random_ids(6, 7, 4)),
        case(arg(64, 4, 17, permute=(0, 2, 1, 3)), arg(64, 2, 3), random_ids(2, 3, 4)),
        case(arg(64, 17, 4), arg(64, 3, 2, permute=(0, 2, 1, 3)), random_ids(2, 3, 4)),
        *(_routed(256, 17, 4, 2, 3, type) for type in OTHER_QUANTS),
        *(_cached(n_tokens, type) for n_tokens in (1, 9) for type in (F32, F16, *QUANTS[:2])),
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
    gradients={
        "as": lambda ops, y, dy: ops.mul_mat_id_back(
            dy, y.src[1], _numbers(ops, y), n_expert=y.src[0].ne[2]
        ),
        "b": _gradient_of_rows,
    },
)  # fmt: skip


def mul_mat_id(
    ctx: Context, as_: Tensor, b: Tensor, ids: Tensor, slots: Tensor | None = None
) -> Tensor:
    """Each token's rows times the matrices of the experts that it uses.

    Args:
        slots: which of the matrices an expert has; None: expert i has matrix i.

    Shape:
        ``as_`` [k, m, n_expert], b F32 [k, n_b, n_tokens], ids I32 [n_used, n_tokens], where n_b
        divides n_used -> F32 [m, n_used, n_tokens]; use u of a token reads its row u % n_b. With
        slots I32 [n_expert] ``as_`` is [k, m, n_slots].

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit, or rows have gaps.
    """
    return MUL_MAT_ID.build(ctx, as_, b, ids, slots)


def _infer_back(dy: Tensor, b: Tensor, ids: Tensor, n_expert: int) -> Out:
    op = "MUL_MAT_ID_BACK"
    require(n_expert > 0, op, f"n_expert is {n_expert}, want 1 or more")
    require(
        ids.ne == (*dy.ne[1:3], 1, 1) and dy.ne[3] == b.ne[3] == 1,
        op,
        f"ids {ids.ne} must be {(*dy.ne[1:3], 1, 1)}, one for each row of dy {dy.ne}",
    )
    require(
        b.ne[2] == dy.ne[2] and b.ne[1] > 0 and dy.ne[1] % b.ne[1] == 0,
        op,
        f"b {b.ne} must have a divisor of {dy.ne[1]} rows for each of {dy.ne[2]} tokens",
    )
    return Out(F32, (b.ne[0], dy.ne[0], n_expert, 1))


def _mul_mat_id_back(dy: Array, b: Array, ids: Array, n_expert: int) -> Array:
    ids = chosen_experts(ids, n_expert).ravel()
    x = np.tile(b[0], (1, dy.shape[2] // b.shape[2], 1)).reshape(len(ids), b.shape[3])
    dy = dy[0].reshape(len(ids), -1)
    out = np.zeros((1, n_expert, dy.shape[1], x.shape[1]))
    for expert in range(n_expert):
        out[0, expert] = dy[ids == expert].T @ x[ids == expert]
    return out


def _routed_back(
    k: int, m: int, n_expert: int, n_used: int, n_tokens: int, n_b: int = 0, **kw: bool
) -> Case:
    b = arg(k, n_b or n_used, n_tokens)
    ids = random_ids(n_used, n_tokens, n_expert)
    return case(arg(m, n_used, n_tokens), b, ids, n_expert=n_expert, **kw)


MUL_MAT_ID_BACK = define_op(
    "MUL_MAT_ID_BACK",
    src={"dy": source(F32), "b": source(F32), "ids": _IDS},
    params={"n_expert": 1},
    infer=_infer_back,
    reference=_mul_mat_id_back,
    cases=lambda: [
        _routed_back(1, 1, 1, 1, 1),
        _routed_back(65, 33, 4, 3, 9),
        _routed_back(65, 33, 4, 3, 9, n_b=1),
        _routed_back(32, 17, 4, 6, 7, n_b=2),
        _routed_back(150, 70, 8, 2, 700),  # several pieces of an expert's uses
        case(
            arg(17, 3, 2, permute=(0, 2, 1, 3)),
            arg(64, 3, 2, permute=(0, 2, 1, 3)),
            random_ids(2, 3, 4),
            n_expert=4,
        ),
        _routed_back(512, 256, 16, 4, 512, n_b=1, perf=True),
    ],
    cost=lambda node: Cost(
        node.nbytes + node.src[0].nbytes + node.src[1].nbytes,
        node.src[0].nelements * node.ne[0],
    ),
    doc="The gradient of the matrices, where `dy` is that of `mul_mat_id` of `b` and `ids`.",
)


def mul_mat_id_back(ctx: Context, dy: Tensor, b: Tensor, ids: Tensor, n_expert: int) -> Tensor:
    """The gradient of ``as_``, where ``dy`` is that of ``mul_mat_id(as_, b, ids)``.

    Shape:
        dy F32 [m, n_used, n_tokens], b F32 [k, n_b, n_tokens], ids I32 [n_used, n_tokens]
        -> F32 [k, m, n_expert]; zeros for an expert that no token uses

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit, or rows have gaps.
    """
    return MUL_MAT_ID_BACK.build(ctx, dy, b, ids, n_expert=n_expert)


def _add_id_gradient_of_b(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    b, ids = y.src[1], y.src[2]
    assert b is not None and ids is not None
    n_rows = dy.ne[1] * dy.ne[2]
    dy = ops.reshape(ops.contiguous(dy), ne=(dy.ne[0], n_rows, 1, 1))
    ids = ops.reshape(ops.contiguous(ids), ne=(n_rows, 1, 1, 1))
    out: Tensor = ops.get_rows_back(dy, ids, n=b.ne[1])
    return out


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
    reference=lambda a, b, ids: a + b[0, 0][chosen_experts(ids, b.shape[2])],
    cases=lambda: [
        case(arg(1, 1, 1), arg(1, 1), random_ids(1, 1, 1)),
        case(arg(65, 3, 17), arg(65, 8), random_ids(3, 17, 8)),
        case(arg(64, 9, 4, permute=(0, 2, 1, 3)), arg(64, 5), random_ids(4, 9, 5)),
        case(arg(2880, 4, 32), arg(2880, 32), random_ids(4, 32, 32), perf=True),
    ],
    inplace_ok=True,
    doc="Adds to each row of `a` the row of `b` that `ids` names.",
    gradients={"a": lambda ops, y, dy: dy, "b": _add_id_gradient_of_b},
)


def add_id(ctx: Context, a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """``a`` plus the rows of ``b`` that ``ids`` name: the bias of the expert that a row went to.

    Shape:
        a F32 [n, n_used, n_tokens], b F32 [n, n_expert], ids I32 [n_used, n_tokens] -> a's

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit, or rows have gaps.
    """
    return ADD_ID.build(ctx, a, b, ids)
