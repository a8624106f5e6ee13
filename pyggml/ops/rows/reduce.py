"""Reductions: ARGMAX, SUM, SUM_ROWS, MEAN, CUMSUM and COUNT_EQUAL.

    best = argmax(ctx, logits)                     # I32 [n_tokens]
    right = count_equal(ctx, best, labels)         # I64 [1]

Sums are taken in float64 and rounded once, in an order that depends on sizes only.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ...context import Context
from ...dtype import GGMLType
from ...tensor import Dims, Tensor
from ..op import (
    ALL_FLOATS,
    BF16,
    F16,
    F32,
    I32,
    Array,
    Cost,
    Out,
    arg,
    case,
    define_op,
    half_nmse,
    require,
    same,
    source,
)

__all__ = ["argmax", "count_equal", "cumsum", "mean", "sum", "sum_rows"]

ONE: Dims = (1, 1, 1, 1)


def _infer_argmax(x: Tensor) -> Out:
    require(
        x.ne[2] == x.ne[3] == 1 and x.ne[0] > 0, "ARGMAX", f"x {x.ne} must be a matrix [n, rows]"
    )
    return Out(I32, (x.ne[1], 1, 1, 1))


def _ties(rng: np.random.Generator) -> Array:
    return rng.integers(0, 3, (17, 65)).astype(np.float32)


def _extreme(rng: np.random.Generator) -> Array:
    extremes = np.array([np.inf, -np.inf, 0.0, -0.0, 3e38], np.float32)
    x = rng.choice(extremes, (9, 1100))
    for row, n in enumerate((0, 1, 2, 3, 40, 0, 1, 2, 1100)):
        x[row, rng.choice(1100, n, replace=False)] = np.nan if row < 5 else -np.nan
    x[5] = -np.inf
    return x


ARGMAX = define_op(
    "ARGMAX",
    src={"x": source(F32)},
    infer=_infer_argmax,
    reference=lambda x: x[0, 0].argmax(axis=-1).astype(np.int32).reshape(1, 1, 1, -1),
    cases=lambda: [
        case(arg(1)),
        case(arg(3, 17)),
        case(arg(65, 5)),
        case(arg(65, 17, values=_ties)),
        case(arg(65, 17, low=-3, high=-2)),
        case(arg(1100, 9, values=_extreme)),
        case(arg(49152, 1), perf=True),
        case(arg(49152, 64), perf=True),
    ],
    exact=True,
    doc="The place of the largest element of each row; of equal ones the first, NaN before all.",
)


def argmax(ctx: Context, x: Tensor) -> Tensor:
    """The index of the largest element of each row: the first of equal ones, NaN before all.

    Shape:
        x F32 [n, rows] -> I32 [rows]

    Raises:
        ShapeError, TypeMismatch: not an F32 matrix.
    """
    return ARGMAX.build(ctx, x)


_sum_cost = lambda node: Cost(node.src[0].nbytes)  # noqa: E731

SUM = define_op(
    "SUM",
    src={"x": source(*ALL_FLOATS)},
    infer=lambda x: Out(x.type, ONE),
    reference=lambda x: np.sum(x, dtype=np.float64).reshape(1, 1, 1, 1),
    cases=lambda: [
        case(arg(1)),
        case(arg(65, 17, 3, 2)),
        case(arg(17, 3, 5, permute=(0, 2, 1, 3))),
        case(arg(20000, 3)),  # rows in several pieces
        case(arg(3, 9001)),  # many rows a piece
        case(arg(17, 0)),
        case(arg(65, 17, low=1e6, high=2e6)),
        case(arg(65, 17, type=F16)),
        case(arg(65, 17, type=BF16)),
        case(arg(576, 512), perf=True),
    ],
    max_nmse=half_nmse,
    cost=_sum_cost,
    doc="The sum of all elements.",
    gradients={"x": lambda ops, y, dy: ops.repeat(dy, ne=y.src[0].ne)},
)


def sum(ctx: Context, x: Tensor) -> Tensor:
    """The sum of all elements; of no elements 0.

    Shape:
        x F32, F16 or BF16 of any shape -> its type [1]
    """
    return SUM.build(ctx, x)


def _infer_rows(name: str, x: Tensor) -> Out:
    require(name != "MEAN" or x.ne[0] > 0, name, f"x '{x.name}' {x.ne} has empty rows")
    return Out(F32, (1, *x.ne[1:]))


def _sum_rows(x: Array) -> Array:
    return np.asarray(np.sum(x, axis=-1, keepdims=True, dtype=np.float64))


SUM_ROWS = define_op(
    "SUM_ROWS",
    src={"x": source(F32)},
    infer=partial(_infer_rows, "SUM_ROWS"),
    reference=_sum_rows,
    cases=lambda: [
        case(arg(1)),
        case(arg(65, 17, 3, 2)),
        case(arg(1, 17)),
        case(arg(17, 3, 5, permute=(0, 2, 1, 3))),
        case(arg(65, 3, low=1e6, high=2e6)),
        case(arg(0, 3)),
        case(arg(576, 512), perf=True),
    ],
    cost=_sum_cost,
    doc="The sum of each row.",
    gradients={"x": lambda ops, y, dy: ops.repeat(dy, ne=y.src[0].ne)},
)

MEAN = define_op(
    "MEAN",
    src={"x": source(F32)},
    infer=partial(_infer_rows, "MEAN"),
    reference=lambda x: _sum_rows(x) / x.shape[-1],
    cases=lambda: [
        case(arg(1)),
        case(arg(65, 17, 3, 2)),
        case(arg(17, 3, 5, permute=(0, 2, 1, 3))),
        case(arg(65, 3, low=1e6, high=2e6)),
        case(arg(576, 512), perf=True),
    ],
    cost=_sum_cost,
    doc="The mean of each row.",
    gradients={
        "x": lambda ops, y, dy: ops.repeat(ops.scale(dy, s=1 / y.src[0].ne[0]), ne=y.src[0].ne)
    },
)


def sum_rows(ctx: Context, x: Tensor) -> Tensor:
    """The sum of each row.

    Shape:
        x F32 [n, ne1, ne2, ne3] -> [1, ne1, ne2, ne3]
    """
    return SUM_ROWS.build(ctx, x)


def mean(ctx: Context, x: Tensor) -> Tensor:
    """The mean of each row; shapes as ``sum_rows``. Raises: ShapeError of empty rows."""
    return MEAN.build(ctx, x)


CUMSUM = define_op(
    "CUMSUM",
    src={"x": source(F32)},
    infer=same,
    reference=lambda x: np.cumsum(x, axis=-1, dtype=np.float64),
    cases=lambda: [
        case(arg(1)),
        case(arg(65, 17, 3, 2)),
        case(arg(17, 3, 5, permute=(0, 2, 1, 3))),
        case(arg(9001, 2, low=0, high=1000)),
        case(arg(576, 512), perf=True),
    ],
    doc="The sums of each row's first elements: one, two, and so on.",
    gradients={  # the sums of the last elements
        "x": lambda ops, y, dy: ops.add(ops.sub(dy, ops.cumsum(dy)), ops.sum_rows(dy)),
    },
)


def cumsum(ctx: Context, x: Tensor) -> Tensor:
    """Running sums along each row; F32 of any shape."""
    return CUMSUM.build(ctx, x)


def _infer_count_equal(a: Tensor, b: Tensor) -> Out:
    require(a.ne == b.ne, "COUNT_EQUAL", f"a {a.ne} and b {b.ne} must have the same sizes")
    return Out(GGMLType.I64, ONE)


_few = partial(arg, type=I32, low=0, high=3)

COUNT_EQUAL = define_op(
    "COUNT_EQUAL",
    src={"a": source(I32), "b": source(I32)},
    infer=_infer_count_equal,
    reference=lambda a, b: np.sum(a == b, dtype=np.int64).reshape(1, 1, 1, 1),
    cases=lambda: [
        case(_few(1), _few(1)),
        case(_few(65, 17, 3, 2), _few(65, 17, 3, 2)),
        case(_few(17, 3, 5, permute=(0, 2, 1, 3)), _few(17, 5, 3)),
        case(_few(20000, 3), _few(20000, 3)),
        case(_few(0), _few(0)),
        case(_few(512, 512), _few(512, 512), perf=True),
    ],
    exact=True,
    cost=lambda node: Cost(2 * node.src[0].nbytes),
    doc="How many elements of `a` equal those of `b`.",
)


def count_equal(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """The number of elements of ``a`` that equal those of ``b``.

    Shape:
        a and b I32 of equal sizes -> I64 [1]

    Raises:
        ShapeError, TypeMismatch: not I32, or of other sizes.
    """
    return COUNT_EQUAL.build(ctx, a, b)
