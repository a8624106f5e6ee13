"""UNARY: one function for every element, one kernel for each kind and type.

Access: rows front to back, split inside long rows. The kinds that models use vectorise; ``elu``,
``expm1``, ``softplus`` and ``xielu`` call libm.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ....dtype import GGMLType
from ....jit import Kernel, inline_strict, kernel
from ....ops.unary import KINDS, XIELU
from ....tensor import Tensor
from ..abi import DST, SRC0, first_row, float_param, int_param, ne, nrows, row_address
from ..lowering import Lowering, lowers
from ..simd.element import put, take
from ..simd.math import (
    abs_f32,
    exp_f32,
    gelu_erf_f32,
    gelu_f32,
    gelu_quick_f32,
    sigmoid_f32,
    silu_f32,
    tanh_f32,
    with_sign,
)
from .span import columns, split

GRAIN = 1024  # elements: a microsecond of exp
IDS = {kind: i for i, kind in enumerate((*KINDS, XIELU))}
_TYPES = (GGMLType.F32, GGMLType.F16)
ABS, SGN, NEG, STEP, TANH, ELU, RELU, SIGMOID, GELU, GELU_QUICK, SILU = (
    IDS[k]
    for k in (
        "abs", "sgn", "neg", "step", "tanh", "elu", "relu", "sigmoid", "gelu", "gelu_quick", "silu",
    )
)  # fmt: skip
HARDSWISH, HARDSIGMOID, EXP, EXPM1, SOFTPLUS, GELU_ERF, FLOOR, CEIL, ROUND, TRUNC = (
    IDS[k]
    for k in (
        "hardswish", "hardsigmoid", "exp", "expm1", "softplus", "gelu_erf", "floor", "ceil",
        "round", "trunc",
    )
)  # fmt: skip
_XIELU = IDS[XIELU]
ZERO, HALF, ONE, THREE, SIX = (np.float32(v) for v in (0, 0.5, 1, 3, 6))


@inline_strict
def activation(kind, x):  # type: ignore[no-untyped-def]
    """The kinds that gate a GLU; ``kind`` is a constant where this is inlined."""
    if kind == SILU:
        return silu_f32(x)
    if kind == GELU:
        return gelu_f32(x)
    if kind == GELU_QUICK:
        return gelu_quick_f32(x)
    if kind == GELU_ERF:
        return gelu_erf_f32(x)
    return ZERO if x <= ZERO else x  # relu; NaN stays


@inline_strict
def _hardsigmoid(x):  # type: ignore[no-untyped-def]
    y = (x + THREE) / SIX
    y = ZERO if y < ZERO else y
    return ONE if y > ONE else y


@inline_strict
def _rounding(kind, x):  # type: ignore[no-untyped-def]
    if kind == FLOOR:
        return np.floor(x)
    if kind == CEIL:
        return np.ceil(x)
    t = np.trunc(x)
    away = t + with_sign(ONE, x)
    return away if kind == ROUND and abs_f32(x - t) >= HALF else t  # half goes away from zero


@inline_strict
def function(kind, x):  # type: ignore[no-untyped-def]
    """Any kind but xielu; ``kind`` is a constant where this is inlined."""
    if kind == ABS:
        return abs_f32(x)
    if kind == SGN:
        return ONE if x > ZERO else -ONE if x < ZERO else x
    if kind == NEG:
        return -x
    if kind == STEP:
        return ONE if x > ZERO else ZERO
    if kind == TANH:
        return tanh_f32(x)
    if kind == ELU:
        return x if x > ZERO else np.float32(math.expm1(x))
    if kind == SIGMOID:
        return sigmoid_f32(x)
    if kind == HARDSWISH:
        return x * _hardsigmoid(x)
    if kind == HARDSIGMOID:
        return _hardsigmoid(x)
    if kind == EXP:
        return exp_f32(x)
    if kind == EXPM1:
        return np.float32(math.expm1(x))
    if kind == SOFTPLUS:
        return (x if x > ZERO else ZERO) + np.float32(math.log1p(exp_f32(-abs_f32(x))))
    if kind == FLOOR or kind == CEIL or kind == ROUND or kind == TRUNC:
        return _rounding(kind, x)
    return activation(kind, x)


@inline_strict
def _xielu(x, alpha_n, alpha_p, beta, eps):  # type: ignore[no-untyped-def]
    if x > ZERO:
        return alpha_p * x * x + beta * x
    low = eps if x > eps else x
    return (np.float32(math.expm1(low)) - x) * alpha_n + beta * x


@lru_cache(maxsize=None)
def unary_kernel(kind: int, fmt: int) -> Kernel:
    """The kernel of a kind for a type. Parameters: parts of a row, then xielu's four numbers."""

    def unary(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        n, parts = ne(node, DST, 0), int_param(node, 0)
        units = nrows(node, DST) * parts
        for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
            row = u // parts
            begin, end = columns(n, u - row * parts, parts)
            x, y = row_address(node, SRC0, row), row_address(node, DST, row)
            if kind == _XIELU:
                p1, p2 = float_param(node, 1), float_param(node, 2)
                p3, p4 = float_param(node, 3), float_param(node, 4)
                for i in range(begin, end):
                    put(fmt, y, i, _xielu(take(fmt, x, i), p1, p2, p3, p4))
            else:
                for i in range(begin, end):
                    put(fmt, y, i, function(kind, take(fmt, x, i)))

    made = kernel(unary)
    made.name = f"{list(IDS)[kind]}_{GGMLType(fmt).name.lower()}"
    return made


def _supports(node: Tensor) -> bool:
    x = node.src[0]
    return x is not None and x.type in _TYPES and x.is_contiguous_rows()


@lowers("UNARY", _supports)
def lower_unary(low: Lowering, node: Tensor) -> None:
    parts, chunks = split(low, node, GRAIN)
    p = node.op_params
    xielu = [float(p[k]) for k in ("alpha_n", "alpha_p", "beta", "eps")]
    made = unary_kernel(IDS[p["kind"]], int(node.type))
    low.launch(made, node, (parts, *(xielu if p["kind"] == XIELU else ())), chunks)
