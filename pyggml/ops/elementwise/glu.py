"""Gated linear units: GLU with a ``kind``, packed or split.

    y = swiglu_split(ctx, gate, up)                # silu(gate) * up
    y = swiglu(ctx, both)                          # first half of each row is the gate

``swiglu_oai`` (gpt-oss) and ``swiglu_clamp`` limit the gate from above and ``up`` on both sides.
Source: Shazeer, "GLU Variants Improve Transformer".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...context import Context
from ...errors import UnsupportedOp
from ...tensor import Tensor
from ..op import (
    F16,
    F32,
    FLOATS,
    Array,
    Case,
    OpBuilders,
    Out,
    arg,
    case,
    define_op,
    half_nmse,
    require,
    require_type,
    same,
    source,
)
from .formulas import LIMITED, reference
from .unary import activation_gradient

__all__ = [
    "geglu", "geglu_erf", "geglu_erf_split", "geglu_erf_swapped", "geglu_quick",
    "geglu_quick_split", "geglu_quick_swapped", "geglu_split", "geglu_swapped", "glu",
    "glu_split", "reglu", "reglu_split", "reglu_swapped", "swiglu", "swiglu_clamp",
    "swiglu_oai", "swiglu_split", "swiglu_swapped",
]  # fmt: skip

# kind -> the unary kind that acts on the gate
ACTIVATIONS = {
    "reglu": "relu",
    "geglu": "gelu",
    "swiglu": "silu",
    "geglu_erf": "gelu_erf",
    "geglu_quick": "gelu_quick",
}
OAI, CLAMP = "swiglu_oai", "swiglu_clamp"  # the kinds with a limit
KINDS = (*ACTIVATIONS, OAI, CLAMP)


def limits(kind: str, alpha: float, limit: float) -> tuple[float, float, float]:
    """(alpha, limit, shift): ``g * sigmoid(alpha * g) * (u + shift)`` with g and u limited."""
    return (alpha, limit, 1.0) if kind == OAI else (1.0, limit, 0.0)


def _infer(
    a: Tensor, b: Tensor | None, kind: str, swapped: bool, alpha: float, limit: float
) -> Out:
    require(kind in KINDS, "GLU", f"no kind {kind!r}; there are {[*KINDS]}")
    require(kind in ACTIVATIONS or limit >= 0, "GLU", f"limit of {kind} is {limit}, want 0 or more")
    if kind == OAI:
        require_type("GLU", "a", a, (F32,))
    if b is not None:
        require(
            a.ne == b.ne and a.type == b.type and not swapped,
            "GLU",
            f"gate {a.type.name} {a.ne} and up {b.type.name} {b.ne} must be alike, and not swapped",
        )
        return same(a)
    require(a.ne[0] % 2 == 0, "GLU", f"a packed row must be even, got {a.ne[0]} elements")
    return Out(a.type, (a.ne[0] // 2, *a.ne[1:]))


def _glu(a: Array, b: Array | None, kind: str, swapped: bool, alpha: float, limit: float) -> Array:
    if b is None:
        a, b = np.split(a, 2, axis=-1)
        if swapped:
            a, b = b, a
    if kind in ACTIVATIONS:
        return reference(ACTIVATIONS[kind], a) * b
    return reference(LIMITED, a, b, *limits(kind, alpha, limit))


def _gradient(of: str, ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor | None:
    """The gradient of ``a`` or ``b``; for a packed ``a``, those of its halves side by side."""
    a, b, kind = y.src[0], y.src[1], y.op_params["kind"]
    assert a is not None
    if kind not in ACTIVATIONS:
        raise UnsupportedOp(f"GLU: {kind} has no gradient; there are {[*ACTIVATIONS]}")
    packed, swapped = b is None, y.op_params["swapped"]
    if packed:
        half = {"ne": y.ne, "nb": a.nb}
        a, b = ops.view(a, **half), ops.view(a, **half, offset=y.nb[1])
    gate, up = (b, a) if swapped else (a, b)
    assert gate is not None
    activation = ACTIVATIONS[kind]

    def d_gate() -> Tensor | None:
        return activation_gradient(ops, activation, gate, ops.mul(dy, up))

    def d_up() -> Tensor:
        return ops.mul(dy, ops.unary(gate, kind=activation))

    if not packed:
        return d_gate() if of == "a" else d_up()
    return ops.concat(*((d_up(), d_gate()) if swapped else (d_gate(), d_up())), dim=0)


def _cases() -> list[Case]:
    cases = []
    numbers: dict[str, dict[str, Any]] = {
        OAI: {"alpha": 1.702, "limit": 4.0},
        CLAMP: {"limit": 4.0},
    }
    for kind in KINDS:
        a = arg(130, 17, low=-6, high=6)
        half = arg(65, 17, low=-6, high=6)
        cases += [
            case(a, kind=kind, **numbers.get(kind, {})),
            case(a, kind=kind, swapped=True, **numbers.get(kind, {})),
            case(half, half, kind=kind, **numbers.get(kind, {})),
        ]
    view = arg(64, 3, 5, permute=(0, 2, 1, 3))
    cases += [
        case(arg(2), kind="swiglu"),
        case(arg(1), arg(1), kind="swiglu"),
        case(arg(34, 3, 5, 2), kind="swiglu"),
        case(view, view, kind="swiglu"),
        case(view, kind="swiglu"),
        case(arg(66, 3, type=F16), kind="swiglu"),
        case(arg(65, 3, type=F16), arg(65, 3, type=F16), kind="geglu"),
        case(arg(65, 3, type=F16), arg(65, 3, type=F16), kind=CLAMP, limit=0.5),
        case(view, view, kind=OAI, alpha=1.702, limit=float("inf")),
        case(arg(1536, 1), arg(1536, 1), kind="swiglu", perf=True),
        case(arg(1536, 512), arg(1536, 512), kind="swiglu", perf=True),
        case(arg(3072, 512), kind="swiglu", perf=True),
    ]
    return cases


GLU = define_op(
    "GLU",
    src={"a": source(*FLOATS), "b?": source(*FLOATS)},
    params={"kind": "", "swapped": False, "alpha": 0.0, "limit": 0.0},
    infer=_infer,
    reference=_glu,
    cases=_cases,
    max_nmse=half_nmse,
    doc="`activation(gate) * up`; both in one tensor (packed) or in two (split).",
    gradients={"a": partial(_gradient, "a"), "b": partial(_gradient, "b")},
)


def glu(ctx: Context, a: Tensor, kind: str, swapped: bool = False) -> Tensor:
    """A packed GLU: the first half of each row is the gate, the second if ``swapped``.

    Shape:
        a F32 or F16 [2 * n, ne1, ne2, ne3] -> [n, ne1, ne2, ne3]

    Raises:
        ShapeError, TypeMismatch: an unknown kind, or a source that does not fit.
    """
    return GLU.build(ctx, a, kind=kind, swapped=swapped)


def glu_split(ctx: Context, a: Tensor, b: Tensor, kind: str) -> Tensor:
    """``activation(a) * b``; both F32 or both F16, of equal sizes. Raises: as ``glu``."""
    return GLU.build(ctx, a, b, kind=kind)


_Packed = Callable[[Context, Tensor], Tensor]
_Split = Callable[[Context, Tensor, Tensor], Tensor]


def _builders(kind: str) -> tuple[_Packed, _Packed, _Split]:
    def packed(ctx: Context, a: Tensor) -> Tensor:
        return glu(ctx, a, kind)

    def swapped(ctx: Context, a: Tensor) -> Tensor:
        return glu(ctx, a, kind, swapped=True)

    def split(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
        return glu_split(ctx, a, b, kind)

    for build, suffix in ((packed, ""), (swapped, "_swapped"), (split, "_split")):
        build.__name__ = build.__qualname__ = kind + suffix
        build.__doc__ = f"``{kind}{suffix}``; see ``glu`` and ``glu_split``."
    return packed, swapped, split


reglu, reglu_swapped, reglu_split = _builders("reglu")
geglu, geglu_swapped, geglu_split = _builders("geglu")
swiglu, swiglu_swapped, swiglu_split = _builders("swiglu")
geglu_erf, geglu_erf_swapped, geglu_erf_split = _builders("geglu_erf")
geglu_quick, geglu_quick_swapped, geglu_quick_split = _builders("geglu_quick")


def swiglu_oai(ctx: Context, a: Tensor, b: Tensor | None, alpha: float, limit: float) -> Tensor:
    """``g * sigmoid(alpha * g) * (u + 1)``: g is ``a`` up to ``limit``, u ``b`` within +-limit.

    Args:
        b: as in ``glu_split``; None for a packed ``a``.

    Raises:
        ShapeError, TypeMismatch: as ``glu``; also for F16, or a negative limit.
    """
    return GLU.build(ctx, a, b, kind=OAI, alpha=float(alpha), limit=float(limit))


def swiglu_clamp(ctx: Context, a: Tensor, b: Tensor | None, limit: float) -> Tensor:
    """``silu(g) * u``: g is ``a`` up to ``limit``, u is ``b`` within +-limit; b as ``swiglu_oai``.

    Raises:
        ShapeError, TypeMismatch: as ``glu``; also for a negative limit.
    """
    return GLU.build(ctx, a, b, kind=CLAMP, limit=float(limit))
