"""Tensors from numbers: ARANGE and FILL.

pos = arange(ctx, 0, 8, 1)                     # F32 [8]
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import F16, F32, FLOATS, Array, Cost, Out, arg, case, define_op, require, same, source

__all__ = ["arange", "fill"]


def _steps(start: float, stop: float, step: float) -> int:
    """The number of elements before ``stop``, computed in float32 as in ggml."""
    return int(np.ceil((np.float32(stop) - np.float32(start)) / np.float32(step)))


def _infer_arange(start: float, stop: float, step: float) -> Out:
    require(
        stop > start and step > 0,
        "ARANGE",
        f"from {start} to {stop} in steps of {step}: want stop > start and step > 0",
    )
    return Out(F32, (_steps(start, stop, step), 1, 1, 1))


def _arange(start: float, stop: float, step: float) -> Array:
    i = np.arange(_steps(start, stop, step), dtype=np.float32)
    return (np.float32(start) + np.float32(step) * i).reshape(1, 1, 1, -1)


ARANGE = define_op(
    "ARANGE",
    src=(),
    params={"start": 0.0, "stop": 1.0, "step": 1.0},
    infer=_infer_arange,
    reference=_arange,
    cases=lambda: [
        case(start=0.0, stop=1.0, step=1.0),
        case(start=-3.0, stop=65.5, step=1.0),
        case(start=0.0, stop=1.0, step=0.1),
        case(start=1e6, stop=1e6 + 40000, step=3.0),
        case(start=0.0, stop=65536.0, step=1.0, perf=True),
    ],
    exact=True,
    doc="`start`, `start + step` and so on, up to but without `stop`.",
)


def arange(ctx: Context, start: float, stop: float, step: float) -> Tensor:
    """``start + i * step`` in float32 for each i from 0 on that stays below ``stop``.

    Shape:
        F32 [ceil((stop - start) / step)]

    Raises:
        ShapeError: ``stop`` is not larger than ``start``, or ``step`` not than 0.
    """
    return ARANGE.build(ctx, start=float(start), stop=float(stop), step=float(step))


def _infer_fill(a: Tensor, c: float) -> Out:
    require(a.is_contiguous(), "FILL", f"a '{a.name}' {a.ne} has gaps; use cont() first")
    return same(a)


FILL = define_op(
    "FILL",
    src={"a": source(*FLOATS, gaps=True)},
    params={"c": 0.0},
    infer=_infer_fill,
    reference=lambda a, c: np.full(a.shape, c, np.float32),
    cases=lambda: [
        case(arg(1), c=0.5),
        case(arg(65, 17, 3, 2), c=-0.1),
        case(arg(20000), c=3.0),
        case(arg(17, 3, type=F16), c=0.1),
        case(arg(17, 3), c=float("-inf")),
        case(arg(576, 512), c=1.0, perf=True),
    ],
    exact=True,
    inplace_ok=True,
    cost=lambda node: Cost(node.nbytes),
    doc="A tensor like `a` in which every element is `c`.",
    gradients={"a": lambda ops, y, dy: None},
)


def fill(ctx: Context, a: Tensor, c: float) -> Tensor:
    """A tensor of the type and sizes of ``a`` (F32 or F16, contiguous) full of ``c``.

    Raises:
        ShapeError, TypeMismatch: ``a`` has gaps, or another type.
    """
    return FILL.build(ctx, a, c=float(c))
