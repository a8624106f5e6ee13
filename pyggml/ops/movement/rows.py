"""Reading and writing rows by index: GET_ROWS (embeddings), its gradient, SET_ROWS (KV cache).

    x = get_rows(ctx, tok_embd, tokens)            # F32 [n_embd, n_tokens]
    set_rows(ctx, k_cache, k, cells)               # writes; returns a view of k_cache

Indices are data, so the same graph serves any tokens and cells.
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
    FLOATS,
    I32,
    OTHER_QUANTS,
    QUANTS,
    WRITTEN_QUANTS,
    Arg,
    Array,
    Cost,
    Out,
    View,
    arg,
    case,
    define_op,
    derive_name,
    require,
    source,
)

__all__ = ["get_rows", "get_rows_back", "set_rows"]

I64 = GGMLType.I64
BF16 = GGMLType.BF16


def _ids(*ne: int, n_rows: int, type: GGMLType = I32, unique: bool = False, skip: int = 0) -> Arg:
    """Random row numbers; ``unique`` within ``ne[0]``, every ``skip``-th negative."""

    def values(rng: np.random.Generator) -> Array:
        shape = ne[::-1]
        if not unique:
            return rng.integers(0, n_rows, shape)
        ids = np.stack([rng.permutation(n_rows)[: ne[0]] for _ in range(int(np.prod(ne[1:])))])
        if skip:
            ids[:, ::skip] = -1
        return ids.reshape(shape)

    return Arg(ne, type, values=values)


def _infer_get_rows(a: Tensor, ids: Tensor) -> Out:
    require(
        a.ne[2] == ids.ne[1] and a.ne[3] == ids.ne[2] and ids.ne[3] == 1,
        "GET_ROWS",
        f"ids {ids.ne} must be [n, {a.ne[2]}, {a.ne[3]}, 1] to pick rows of a {a.ne}",
    )
    return Out(I32 if a.type == I32 else F32, (a.ne[0], ids.ne[0], ids.ne[1], ids.ne[2]))


def _get_rows(a: Array, ids: Array) -> Array:
    rows = ids[0][..., None]  # [ne3, ne2, n, 1]
    if rows.size and (rows.min() < 0 or rows.max() >= a.shape[2]):
        raise IndexError(f"row {rows.min()}..{rows.max()} of a source with {a.shape[2]} rows")
    return np.take_along_axis(a, rows, axis=2)


GET_ROWS = define_op(
    "GET_ROWS",
    src={"a": source(F32, F16, BF16, I32, quantized=True), "ids": source(I32, gaps=True)},
    infer=_infer_get_rows,
    reference=_get_rows,
    cases=lambda: [
        case(arg(1, 1), _ids(1, n_rows=1)),
        case(arg(65, 17), _ids(3, n_rows=17)),
        case(arg(65, 17, 3, 2), _ids(5, 3, 2, n_rows=17)),
        case(arg(64, 3, 7, permute=(0, 2, 1, 3)), _ids(5, 3, n_rows=7)),
        case(arg(17, 9, type=F16), _ids(20, n_rows=9)),
        case(arg(17, 9, type=BF16), _ids(20, n_rows=9)),
        case(arg(17, 9, type=I32, low=-100, high=100), _ids(4, n_rows=9)),
        *(
            case(arg(ne0, 65, type=t), _ids(n, n_rows=65))
            for t in QUANTS
            for ne0, n in ((32, 1), (96, 17), (576, 3))
        ),
        *(case(arg(512, 9, type=t), _ids(3, n_rows=9)) for t in OTHER_QUANTS),
        case(arg(576, 49152, type=GGMLType.Q8_0), _ids(1, n_rows=49152), perf=True),
        case(arg(576, 49152, type=GGMLType.Q4_1), _ids(512, n_rows=49152), perf=True),
        case(arg(576, 512), _ids(1, n_rows=512), perf=True),
    ],
    max_nmse=lambda node: 1e-12 if node.src[0].type.is_quantized else 0.0,
    cost=lambda node: Cost(2 * node.nbytes),
    doc="Picks rows of `a` by `ids`; quantized rows come as F32.",
    gradients={"a": lambda ops, y, dy: ops.get_rows_back(dy, y.src[1], n=y.src[0].ne[1])},
)


def get_rows(ctx: Context, a: Tensor, ids: Tensor) -> Tensor:
    """Rows of ``a`` in the order of ``ids``, as F32 (I32 stays I32).

    Shape:
        a [n, n_rows, ne2, ne3], ids I32 [r, ne2, ne3] -> [n, r, ne2, ne3]
    """
    return GET_ROWS.build(ctx, a, ids)


def _infer_get_rows_back(dy: Tensor, ids: Tensor, n: int) -> Out:
    require(
        dy.ne[1:] == ids.ne[:3] and ids.ne[3] == 1,
        "GET_ROWS_BACK",
        f"ids {ids.ne} must be {(*dy.ne[1:], 1)}, one for each row of dy {dy.ne}",
    )
    return Out(F32, (dy.ne[0], n, *dy.ne[2:]))


def _get_rows_back(dy: Array, ids: Array, n: int) -> Array:
    if ids.size and (ids.min() < 0 or ids.max() >= n):
        raise IndexError(f"row {ids.min()}..{ids.max()} of {n}")
    out = np.zeros((*dy.shape[:2], n, dy.shape[3]))
    i3, i2, _ = np.indices(ids.shape[1:])
    np.add.at(out, (i3, i2, ids[0]), dy)
    return out


GET_ROWS_BACK = define_op(
    "GET_ROWS_BACK",
    src={"dy": source(F32), "ids": source(I32, gaps=True)},
    params={"n": 1},
    infer=_infer_get_rows_back,
    reference=_get_rows_back,
    cases=lambda: [
        case(arg(1, 1), _ids(1, n_rows=1), n=1),
        case(arg(65, 3), _ids(3, n_rows=17), n=17),
        case(arg(65, 40), _ids(40, n_rows=5), n=5),  # rows that are picked again and again
        case(arg(64, 5, 3, 2), _ids(5, 3, 2, n_rows=17), n=17),
        case(arg(33, 3, 5, permute=(0, 2, 1, 3)), _ids(5, 3, n_rows=7), n=7),
        case(arg(1130, 40), _ids(40, n_rows=9), n=9),
        case(arg(576, 512), _ids(512, n_rows=49152), n=49152, perf=True),
    ],
    cost=lambda node: Cost(node.nbytes + 2 * node.src[0].nbytes),
    doc="Rows of zeros, `n` a matrix, to which rows `dy` are added at `ids`.",
)


def get_rows_back(ctx: Context, dy: Tensor, ids: Tensor, a: Tensor) -> Tensor:
    """The gradient of ``a``, where ``dy`` is that of ``get_rows(a, ids)``.

    Shape:
        dy F32 [n, r, ne2, ne3], ids I32 [r, ne2, ne3] -> F32 of a's sizes [n, n_rows, ne2, ne3]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return GET_ROWS_BACK.build(ctx, dy, ids, n=a.ne[1])


def _infer_set_rows(b: Tensor, idx: Tensor, a: Tensor) -> View:
    op = "SET_ROWS"
    if (a.ne[0], *a.ne[2:]) != (b.ne[0], *b.ne[2:]):
        raise ShapeError(f"{op}: rows b {b.ne} and target a {a.ne} may differ in ne[1] only")
    fits = idx.ne[0] == b.ne[1] and idx.ne[3] == 1 and min(idx.ne) > 0
    if not fits or b.ne[2] % idx.ne[1] or b.ne[3] % idx.ne[2]:
        raise ShapeError(
            f"{op}: idx {idx.ne} must be [{b.ne[1]}, divisor of {b.ne[2]}, divisor of {b.ne[3]}, 1]"
        )
    return View(a, a.ne, a.nb)


def _set_rows(b: Array, idx: Array, a: Array) -> Array:
    out = a.copy()
    for i3 in range(b.shape[0]):
        for i2 in range(b.shape[1]):
            rows = idx[0, i3 % idx.shape[1], i2 % idx.shape[2]]
            if rows.size and rows.max() >= a.shape[2]:
                raise IndexError(f"row {rows.max()} of a target with {a.shape[2]} rows")
            out[i3, i2, rows[rows >= 0]] = b[i3, i2, rows >= 0]
    return out


SET_ROWS = define_op(
    "SET_ROWS",
    src={
        "b": source(*FLOATS),
        "idx": source(I64, I32, gaps=True),
        "a": source(*ALL_FLOATS, quantized=True),
    },
    infer=_infer_set_rows,
    reference=_set_rows,
    cases=lambda: [
        case(arg(1, 1), _ids(1, n_rows=1, unique=True), arg(1, 1)),
        case(arg(65, 3), _ids(3, n_rows=17, type=I64, unique=True), arg(65, 17)),
        case(arg(65, 5), _ids(5, n_rows=17, unique=True, skip=2), arg(65, 17, type=F16)),
        case(arg(17, 5, type=F16), _ids(5, n_rows=9, unique=True), arg(17, 9, type=F16)),
        case(arg(17, 3, 4, 6), _ids(3, 2, 3, n_rows=9, unique=True), arg(17, 9, 4, 6)),
        case(
            arg(64, 3, 5, permute=(0, 2, 1, 3)),
            _ids(5, n_rows=9, unique=True),
            arg(64, 3, 9, type=F16, permute=(0, 2, 1, 3)),
        ),
        case(arg(17, 5), _ids(5, n_rows=9, unique=True), arg(17, 9, type=BF16)),
        case(arg(17, 5, type=F16), _ids(5, n_rows=9, unique=True), arg(17, 9, type=BF16)),
        *(
            case(arg(64, 3, type=s), _ids(3, n_rows=9, unique=True), arg(64, 9, type=t))
            for t in QUANTS
            for s in (F32, F16)
        ),
        *(
            case(
                arg(64, 3, 5, permute=(0, 2, 1, 3)),
                _ids(5, n_rows=9, unique=True, skip=2),
                arg(64, 3, 9, type=t, permute=(0, 2, 1, 3)),
            )
            for t in (BF16, GGMLType.Q8_0)
        ),
        *(
            case(arg(256, 2), _ids(2, n_rows=5, unique=True), arg(256, 5, type=t))
            for t in WRITTEN_QUANTS
        ),
        case(arg(192, 1), _ids(1, n_rows=2048, unique=True), arg(192, 2048, type=F16), perf=True),
        case(
            arg(192, 512), _ids(512, n_rows=2048, unique=True), arg(192, 2048, type=F16), perf=True
        ),
    ],
    exact=True,
    cost=lambda node: Cost(2 * node.src[0].nbytes),
    doc="Writes rows `b` into `a` at `idx` (negative: not written); a view of `a`.",
)


def set_rows(ctx: Context, a: Tensor, b: Tensor, idx: Tensor) -> Tensor:
    """Write the rows of ``b`` into ``a`` at ``idx``, converted to ``a``'s type; a view of ``a``.

    A negative index writes nothing (ours; padded tokens use it). Other indices must differ from
    each other. The node's sources are ``(b, idx, a)``, as in ggml.

    Shape:
        a [n, n_rows, ne2, ne3], b F32 or F16 [n, r, ne2, ne3], idx I32 or I64 [r, ne2', ne3'],
        where ne2' divides ne2 and ne3' divides ne3 -> a's
    """
    return derive_name(SET_ROWS.build(ctx, b, idx, a), a, "view")
