"""The loss of classifiers and language models: CROSS_ENTROPY_LOSS and its gradient.

    loss = cross_entropy_loss(ctx, logits, labels)     # F32 [1]

Labels are probabilities, a row for each row of logits, or the number of the right class. A row
whose number is negative (or whose probabilities are all 0) adds nothing to the loss: padding, or
tokens that are not to be learned. The sum of all rows is divided by their number, those without a
label included, so micro-batches of one size add up to the loss of the whole batch.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import (
    F32,
    I32,
    Arg,
    Array,
    Case,
    Out,
    arg,
    case,
    define_op,
    require,
    require_rows,
    require_type,
    source,
)

__all__ = ["cross_entropy_loss", "cross_entropy_loss_back"]


def _check(name: str, a: Tensor, labels: Tensor) -> None:
    require_type(name, "labels", labels, (F32, I32))
    require(a.ne[0] > 0, name, f"logits {a.ne} have no classes")
    if labels.type is F32:
        require_rows(name, "labels", labels)
        want = a.ne
    else:
        require(labels.is_contiguous(), name, f"labels {labels.ne} have gaps; use cont() first")
        want = (a.nrows, 1, 1, 1)
    require(
        labels.ne == want,
        name,
        f"labels {labels.type.name} {labels.ne} must be {want} for logits {a.ne}",
    )


def _infer(a: Tensor, labels: Tensor) -> Out:
    _check("CROSS_ENTROPY_LOSS", a, labels)
    return Out(F32, (1, 1, 1, 1))


def _probabilities(labels: Array, logits: Array) -> Array:
    """Labels as probabilities. Raises: IndexError."""
    if labels.dtype.kind != "i":
        return labels
    classes = labels.reshape(-1)
    if classes.size and classes.max() >= logits.shape[-1]:
        raise IndexError(f"class {classes.max()} of {logits.shape[-1]}")
    out: Array = np.zeros((classes.size, logits.shape[-1]))
    out[classes >= 0, classes[classes >= 0]] = 1
    return out.reshape(logits.shape)


def _log_softmax(x: Array) -> Array:
    x = x.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    out: Array = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return out


def _loss(a: Array, labels: Array) -> Array:
    rows = max(1, a.size // a.shape[-1])
    total = float(np.sum(_probabilities(labels, a) * _log_softmax(a)))
    return np.full((1, 1, 1, 1), -total / rows)


def _classes(n: int, n_classes: int, first: int = 0) -> Arg:
    return arg(n, type=I32, low=first, high=n_classes)


def _soft_labels(*ne: int) -> Arg:
    """Rows of random probabilities."""

    def values(rng: np.random.Generator) -> Array:
        p: Array = rng.uniform(0, 1, ne[::-1])
        p /= p.sum(axis=-1, keepdims=True)
        return p.astype(np.float32)

    return Arg(ne, values=values)


def _cases(*lead: Arg) -> list[Case]:
    x = partial(arg, low=-5, high=5)
    return [
        case(*lead, x(1), _classes(1, 1)),
        case(*lead, x(10, 50), _classes(50, 10)),
        case(*lead, x(65, 17, 3), _classes(51, 65, first=-9)),
        case(*lead, x(65, 17, 3, 2), _soft_labels(65, 17, 3, 2)),
        case(*lead, x(33, 3, 5, permute=(0, 2, 1, 3)), _soft_labels(33, 5, 3)),
        case(*lead, arg(1100, 9, low=-100, high=100), _classes(9, 1100)),
        case(*lead, arg(2, 3000), _classes(3000, 2)),
        case(*lead, x(49152, 64), _classes(64, 49152), perf=True),
    ]


CROSS_ENTROPY_LOSS = define_op(
    "CROSS_ENTROPY_LOSS",
    src={"a": source(F32), "labels": None},
    infer=_infer,
    reference=_loss,
    cases=_cases,
    doc="The mean over rows of `-log(softmax(a))` at the labels: classes, or probabilities.",
    gradients={"a": lambda ops, y, dy: ops.cross_entropy_loss_back(dy, *y.src)},
)


def cross_entropy_loss(ctx: Context, a: Tensor, labels: Tensor) -> Tensor:
    """``-sum(labels * log(softmax(a)))`` divided by the number of rows.

    Shape:
        a F32 [n_classes, ...], labels F32 of a's sizes or I32 [rows of a] -> F32 [1]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return CROSS_ENTROPY_LOSS.build(ctx, a, labels)


def _infer_back(dy: Tensor, a: Tensor, labels: Tensor) -> Out:
    _check("CROSS_ENTROPY_LOSS_BACK", a, labels)
    require(dy.nelements == 1, "CROSS_ENTROPY_LOSS_BACK", f"dy {dy.ne} must be one number")
    return Out(F32, a.ne)


def _loss_back(dy: Array, a: Array, labels: Array) -> Array:
    p = _probabilities(labels, a)
    rows = max(1, a.size // a.shape[-1])
    out: Array = np.exp(_log_softmax(a)) * p.sum(axis=-1, keepdims=True) - p
    out *= dy.reshape(()) / rows
    return out


CROSS_ENTROPY_LOSS_BACK = define_op(
    "CROSS_ENTROPY_LOSS_BACK",
    src={"dy": source(F32), "a": source(F32), "labels": None},
    infer=_infer_back,
    reference=_loss_back,
    cases=lambda: _cases(arg(1)),
    max_nmse=1e-6,
    doc="The gradient of `a`, where `dy` is that of the cross entropy of `a` and `labels`.",
)


def cross_entropy_loss_back(ctx: Context, dy: Tensor, a: Tensor, labels: Tensor) -> Tensor:
    """The gradient of ``a``, where ``dy`` is that of ``cross_entropy_loss(a, labels)``.

    The gradient is exact for probabilities with any sum in a row, where ggml assumes the sum 1.

    Shape:
        dy F32 [1], a F32 [n_classes, ...], labels F32 of a's sizes or I32 [rows of a] -> F32 a's

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return CROSS_ENTROPY_LOSS_BACK.build(ctx, dy, a, labels)
