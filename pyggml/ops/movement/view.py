"""Views: RESHAPE, VIEW, PERMUTE and TRANSPOSE.

    heads = reshape_3d(ctx, q, 64, 9, n_tokens)
    heads = permute(ctx, heads, 0, 2, 1, 3)        # axis 1 becomes axis 2

Nothing runs: the result is a view of the memory of its source's root. Views of views refer to the
root.
"""

from __future__ import annotations

from math import prod

from ...context import Context
from ...errors import ShapeError, TypeMismatch
from ...tensor import Dims, Tensor, strides
from ..op import Cost, OpBuilders, View, define_op, derive_name, require

__all__ = [
    "permute", "reshape", "reshape_1d", "reshape_2d", "reshape_3d", "reshape_4d", "transpose",
    "view_1d", "view_2d", "view_3d", "view_4d",
]  # fmt: skip

_FREE = Cost(0)


def _infer_reshape(a: Tensor, ne: Dims) -> View:
    if not a.is_contiguous():
        raise ShapeError(
            f"RESHAPE: '{a.name}' {a.ne} has strides {a.nb}, not contiguous; use cont() first"
        )
    if prod(ne) != a.nelements or min(ne) < 0:
        raise ShapeError(
            f"RESHAPE: '{a.name}' {a.ne} has {a.nelements} elements, {ne} has {prod(ne)}"
        )
    return View(a, ne, strides(a.type, ne))


RESHAPE = define_op(
    "RESHAPE",
    src=("a",),
    params={"ne": None},
    infer=_infer_reshape,
    reference=None,
    cost=lambda node: _FREE,
    doc="The same memory with other sizes.",
    gradients={"a": lambda ops, y, dy: ops.reshaped(dy, y.src[0])},
)


def reshape(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """``a`` with the sizes of ``b``. Raises: ShapeError, as ``reshape_4d``."""
    return reshape_4d(ctx, a, *b.ne)


def reshape_1d(ctx: Context, a: Tensor, ne0: int) -> Tensor:
    """``a`` as one row. Raises: ShapeError, as ``reshape_4d``."""
    return reshape_4d(ctx, a, ne0, 1, 1, 1)


def reshape_2d(ctx: Context, a: Tensor, ne0: int, ne1: int) -> Tensor:
    """``a`` with the sizes [ne0, ne1]. Raises: ShapeError, as ``reshape_4d``."""
    return reshape_4d(ctx, a, ne0, ne1, 1, 1)


def reshape_3d(ctx: Context, a: Tensor, ne0: int, ne1: int, ne2: int) -> Tensor:
    """``a`` with the sizes [ne0, ne1, ne2]. Raises: ShapeError, as ``reshape_4d``."""
    return reshape_4d(ctx, a, ne0, ne1, ne2, 1)


def reshape_4d(ctx: Context, a: Tensor, ne0: int, ne1: int, ne2: int, ne3: int) -> Tensor:
    """``a`` with other sizes, elements in the same order.

    Raises:
        ShapeError: ``a`` is not contiguous, or has another number of elements.
    """
    node = RESHAPE.build(ctx, a, ne=(int(ne0), int(ne1), int(ne2), int(ne3)))
    return derive_name(node, a, "reshaped")


def _view_gradient(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    """Zeros with the gradient in the window."""
    a, p = y.src[0], y.op_params
    assert a is not None
    require(
        a.is_contiguous() and p["nb"][0] == a.type.type_size,
        "VIEW",
        f"'{a.name}' {a.ne} has strides {a.nb}: a gradient needs a cont() before the view",
    )
    zeros = ops.fill(a, c=0.0)
    return ops.acc(zeros, dy, nb=p["nb"][1:], offset=p["offset"])


VIEW = define_op(
    "VIEW",
    src=("a",),
    params={"ne": None, "nb": None, "offset": 0},
    infer=lambda a, ne, nb, offset: View(a, ne, nb, offset),
    reference=None,
    cost=lambda node: _FREE,
    doc="A window into `a` with its own sizes, strides and offset.",
    gradients={"a": _view_gradient},
)


def _view(ctx: Context, a: Tensor, ne: Dims, nb: tuple[int, ...], offset: int) -> Tensor:
    """``nb``: strides from dimension 1 on; missing ones follow from the sizes."""
    require(min(ne) >= 0, "VIEW", f"sizes cannot be negative: {ne}")
    nb0, nb1, nb2, nb3 = strides(a.type, ne)
    if nb:
        nb1 = nb[0]
        nb2 = nb[1] if len(nb) > 1 else nb1 * ne[1]
        nb3 = nb[2] if len(nb) > 2 else nb2 * ne[2]
    node = VIEW.build(ctx, a, ne=ne, nb=(nb0, nb1, nb2, nb3), offset=offset)
    return derive_name(node, a, "view")


def view_1d(ctx: Context, a: Tensor, ne0: int, offset: int = 0) -> Tensor:
    """``ne0`` elements of ``a`` from ``offset`` bytes on. Raises: ShapeError, as ``view_4d``."""
    return _view(ctx, a, (ne0, 1, 1, 1), (), offset)


def view_2d(ctx: Context, a: Tensor, ne0: int, ne1: int, nb1: int, offset: int = 0) -> Tensor:
    """A window of two dimensions. Raises: ShapeError, as ``view_4d``."""
    return _view(ctx, a, (ne0, ne1, 1, 1), (nb1,), offset)


def view_3d(
    ctx: Context, a: Tensor, ne: tuple[int, int, int], nb: tuple[int, int], offset: int = 0
) -> Tensor:
    """A window of three dimensions: sizes and (nb1, nb2). Raises: ShapeError, as ``view_4d``."""
    return _view(ctx, a, (*ne, 1), nb, offset)


def view_4d(ctx: Context, a: Tensor, ne: Dims, nb: tuple[int, int, int], offset: int = 0) -> Tensor:
    """A window into ``a``.

    Args:
        ne: sizes.
        nb: strides in bytes of dimensions 1 to 3; dimension 0 keeps the type's.
        offset: bytes from the first element of ``a``.

    Raises:
        ShapeError: the window leaves the memory of ``a``'s root.
    """
    return _view(ctx, a, ne, nb, offset)


def _infer_permute(a: Tensor, axes: tuple[int, ...]) -> View:
    require(
        sorted(axes) == [0, 1, 2, 3],
        "PERMUTE",
        f"axes {axes} must be 0, 1, 2 and 3 in some order (place of each axis of '{a.name}')",
    )
    if a.type.is_quantized and axes[0] != 0:
        raise TypeMismatch(
            f"PERMUTE: axis 0 of '{a.name}' holds {a.type.name} blocks and cannot move to "
            f"{axes[0]}; dequantize it first"
        )
    order = [axes.index(i) for i in range(4)]  # source axis at each place of the result
    ne0, ne1, ne2, ne3 = (a.ne[i] for i in order)
    nb0, nb1, nb2, nb3 = (a.nb[i] for i in order)
    return View(a, (ne0, ne1, ne2, ne3), (nb0, nb1, nb2, nb3))


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axes.index(i) for i in range(4))


PERMUTE = define_op(
    "PERMUTE",
    src=("a",),
    params={"axes": (0, 1, 2, 3)},
    infer=_infer_permute,
    reference=None,
    cost=lambda node: _FREE,
    doc="The same memory with axes in another order.",
    gradients={"a": lambda ops, y, dy: ops.permute(dy, axes=_inverse(y.op_params["axes"]))},
)


def permute(ctx: Context, a: Tensor, axis0: int, axis1: int, axis2: int, axis3: int) -> Tensor:
    """``a`` with axis i at place ``axis_i``: ``result.ne[axis_i] == a.ne[i]``.

    Raises:
        ShapeError: the axes are not 0, 1, 2, 3 in some order.
        TypeMismatch: axis 0 of a quantized tensor would move.
    """
    node = PERMUTE.build(ctx, a, axes=(int(axis0), int(axis1), int(axis2), int(axis3)))
    return derive_name(node, a, "permuted")


def _infer_transpose(a: Tensor) -> View:
    return _infer_permute(a, (1, 0, 2, 3))


TRANSPOSE = define_op(
    "TRANSPOSE",
    src=("a",),
    infer=_infer_transpose,
    reference=None,
    cost=lambda node: _FREE,
    doc="The same memory with the first two axes exchanged.",
    gradients={"a": lambda ops, y, dy: ops.transpose(dy)},
)


def transpose(ctx: Context, a: Tensor) -> Tensor:
    """``a`` with the first two axes exchanged. Raises: TypeMismatch for a quantized type."""
    return derive_name(TRANSPOSE.build(ctx, a), a, "transposed")
