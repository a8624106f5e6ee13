"""A user's own function as a node: MAP_CUSTOM.

    def clip(dst, x):
        np.clip(x, -1, 1, out=dst)

    y = map_custom(ctx, clip, x)

``fun`` is either a Python callable ``fun(dst, *sources)``, which gets the tensors' own memory as
NumPy arrays of four dimensions (``ne`` reversed) and fills ``dst``; or a Numba-jitted function with
the signature of the backend's kernels, which runs on all threads like any other node. A Python
callable runs between two parts of the graph; an exception ends the compute and is raised there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..context import Context
from ..dtype import GGMLType, numpy_dtype
from ..errors import UnsupportedOp
from ..tensor import Dims, Tensor
from .op import F16, Array, Out, arg, case, define_op, require

__all__ = ["map_custom"]

MAX_SOURCES = 10


def is_kernel(fun: Callable[..., Any]) -> bool:
    """Whether ``fun`` is compiled code (jitted or a C callback) rather than a Python callable."""
    return hasattr(fun, "py_func") or hasattr(type(fun), "address")


def _infer(*src: Tensor | None, fun: Any, ne: Dims | None, type: GGMLType | None) -> Out:
    require(callable(fun) or is_kernel(fun), "MAP_CUSTOM", f"fun is {fun!r}, want a function")
    first = src[0]
    if first is None and (ne is None or type is None):
        require(False, "MAP_CUSTOM", "without a source, ne and type of the result must be given")
    if first is None:
        assert ne is not None and type is not None
        return Out(type, ne)
    return Out(first.type if type is None else type, first.ne if ne is None else ne)


def _map_custom(*src: Array | None, fun: Any, ne: Dims | None, type: GGMLType | None) -> Array:
    if is_kernel(fun):
        raise UnsupportedOp(f"{fun} is a compiled kernel: it needs the cpu backend")
    arrays = [x for x in src if x is not None]
    shape = arrays[0].shape if ne is None else ne[::-1]
    dst = np.zeros(shape, arrays[0].dtype if type is None else numpy_dtype(type))
    fun(dst, *arrays)
    return dst


def _double(dst: Array, x: Array) -> None:
    dst[...] = 2 * x


def _outer(dst: Array, x: Array, y: Array) -> None:
    dst[...] = x.reshape(-1, 1) * y.reshape(-1)


def _ramp(dst: Array) -> None:
    dst[...] = np.arange(dst.size).reshape(dst.shape)


def _count(dst: Array, *xs: Array) -> None:
    dst[...] = sum((x > 0).astype(np.int32) for x in xs)


MAP_CUSTOM = define_op(
    "MAP_CUSTOM",
    src=tuple(f"x{i}?" for i in range(MAX_SOURCES)),
    params={"fun": None, "ne": None, "type": None},
    infer=_infer,
    reference=_map_custom,
    cases=lambda: [
        case(arg(1), fun=_double),
        case(arg(17, 3, 5, permute=(2, 0, 1, 3)), fun=_double),
        case(arg(17, type=F16), fun=_double, type=GGMLType.F32),
        case(arg(3), arg(5), fun=_outer, ne=(5, 3, 1, 1)),
        case(fun=_ramp, ne=(17, 3, 1, 1), type=GGMLType.I32),
        case(*(arg(5, 3) for _ in range(MAX_SOURCES)), fun=_count, type=GGMLType.I32),
    ],
    exact=True,
    doc="A user's function: Python, or a jitted kernel.",
)


def map_custom(
    ctx: Context,
    fun: Callable[..., Any],
    *src: Tensor,
    ne: tuple[int, ...] | None = None,
    type: GGMLType | None = None,
) -> Tensor:
    """A node that ``fun`` computes from up to 10 sources.

    Args:
        fun: see the module.
        ne: sizes of the result, the first source's if None.
        type: type of the result, the first source's if None.

    Raises:
        ShapeError: neither a source nor both ``ne`` and ``type``, or more than 4 dimensions.
    """
    if ne is not None:
        require(1 <= len(ne) <= 4, "MAP_CUSTOM", f"ne {ne} must have 1 to 4 sizes")
        ne = (*ne, *(1,) * (4 - len(ne)))
    return MAP_CUSTOM.build(ctx, *src, fun=fun, ne=ne, type=type)
