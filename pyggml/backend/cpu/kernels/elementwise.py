"""Ops that are one function for every element, with the quantization of the result.

    lower_element(low, node, "silu")
    lower_element(low, node, "clamp", (least, most))

There is a kernel for each function and type.
Access: rows front to back, split inside long rows. The functions that models use vectorise;
``elu``, ``expm1``, ``softplus`` and ``xielu`` call libm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from ....dtype import GGMLType
from ....jit import Kernel, inline_strict, kernel
from ....ops.op import ALL_FLOATS
from ....tensor import Tensor
from ..abi import DST, SRC0, first_row, ne, nrows, params_of, row_address
from ..layout import Q8_BLOCK
from ..lowering import Lowering
from ..simd.element import F32, put, take
from ..simd.math import (
    abs_f32,
    exp_f32,
    gelu_erf_f32,
    gelu_f32,
    gelu_quick_f32,
    log_f32,
    sigmoid_f32,
    silu_f32,
    sincos_f32,
    tanh_f32,
    with_sign,
)
from .quantize import BLOCK, quantize_row
from .span import columns, split


class Element(NamedTuple):
    """The values of a function of every element."""

    parts: int  # of each row, see ``span``
    quantize: int = 0  # address of the quantized rows, or 0
    a: float = 0.0  # the function's numbers
    b: float = 0.0
    c: float = 0.0
    d: float = 0.0


ZERO, HALF, ONE, THREE, SIX = (np.float32(v) for v in (0, 0.5, 1, 3, 6))


@inline_strict
def _sgn(x):  # type: ignore[no-untyped-def]
    return ONE if x > ZERO else -ONE if x < ZERO else x


@inline_strict
def _neg(x):  # type: ignore[no-untyped-def]
    return -x


@inline_strict
def _step(x):  # type: ignore[no-untyped-def]
    return ONE if x > ZERO else ZERO


@inline_strict
def _relu(x):  # type: ignore[no-untyped-def]
    return ZERO if x <= ZERO else x  # NaN stays


@inline_strict
def _expm1(x):  # type: ignore[no-untyped-def]
    return np.float32(math.expm1(x))


@inline_strict
def _elu(x):  # type: ignore[no-untyped-def]
    return x if x > ZERO else _expm1(x)


@inline_strict
def _softplus(x):  # type: ignore[no-untyped-def]
    return (x if x > ZERO else ZERO) + np.float32(math.log1p(exp_f32(-abs_f32(x))))


@inline_strict
def _hardsigmoid(x):  # type: ignore[no-untyped-def]
    y = (x + THREE) / SIX
    y = ZERO if y < ZERO else y
    return ONE if y > ONE else y


@inline_strict
def _hardswish(x):  # type: ignore[no-untyped-def]
    return x * _hardsigmoid(x)


@inline_strict
def _floor(x):  # type: ignore[no-untyped-def]
    return np.floor(x)


@inline_strict
def _ceil(x):  # type: ignore[no-untyped-def]
    return np.ceil(x)


@inline_strict
def _trunc(x):  # type: ignore[no-untyped-def]
    return np.trunc(x)


@inline_strict
def _round(x):  # type: ignore[no-untyped-def]
    t = np.trunc(x)
    return t + with_sign(ONE, x) if abs_f32(x - t) >= HALF else t  # half goes away from zero


@inline_strict
def _sqr(x):  # type: ignore[no-untyped-def]
    return x * x


@inline_strict
def _sqrt(x):  # type: ignore[no-untyped-def]
    return np.sqrt(x)


@inline_strict
def _sin(x):  # type: ignore[no-untyped-def]
    return sincos_f32(x)[0]


@inline_strict
def _cos(x):  # type: ignore[no-untyped-def]
    return sincos_f32(x)[1]


@inline_strict
def _leaky_relu(x, slope):  # type: ignore[no-untyped-def]
    return x if x > ZERO else slope * x


@inline_strict
def _clamp(x, low, high):  # type: ignore[no-untyped-def]
    x = high if x > high else x  # NaN stays
    return low if x < low else x


@inline_strict
def _xielu(x, alpha_n, alpha_p, beta, eps):  # type: ignore[no-untyped-def]
    if x > ZERO:
        return alpha_p * x * x + beta * x
    return (_expm1(eps if x > eps else x) - x) * alpha_n + beta * x


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs_f32,
    "sgn": _sgn,
    "neg": _neg,
    "step": _step,
    "tanh": tanh_f32,
    "elu": _elu,
    "relu": _relu,
    "sigmoid": sigmoid_f32,
    "gelu": gelu_f32,
    "gelu_quick": gelu_quick_f32,
    "silu": silu_f32,
    "hardswish": _hardswish,
    "hardsigmoid": _hardsigmoid,
    "exp": exp_f32,
    "expm1": _expm1,
    "softplus": _softplus,
    "gelu_erf": gelu_erf_f32,
    "floor": _floor,
    "ceil": _ceil,
    "round": _round,
    "trunc": _trunc,
    "xielu": _xielu,
    "sqr": _sqr,  # from here on ops of their own
    "sqrt": _sqrt,
    "log": log_f32,
    "sin": _sin,
    "cos": _cos,
    "leaky_relu": _leaky_relu,
    "clamp": _clamp,
}
_NUMBERS = {"leaky_relu": 1, "clamp": 2, "xielu": 4}  # that a function takes beside its element
IDS = {kind: i for i, kind in enumerate(FUNCTIONS)}


def function(kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO):  # type: ignore[no-untyped-def]
    """For jitted code: a function of ``FUNCTIONS``; kind is a literal int, its place in ``IDS``."""
    raise NotImplementedError("for jitted code only")


@overload(function, prefer_literal=True)
def _function(kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO):  # type: ignore[no-untyped-def]
    if not isinstance(kind, types.IntegerLiteral):
        return None
    name = [*FUNCTIONS][kind.literal_value]
    chosen, numbers = FUNCTIONS[name], _NUMBERS.get(name, 0)
    if numbers == 0:
        return lambda kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO: chosen(x)
    if numbers == 1:
        return lambda kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO: chosen(x, a)
    if numbers == 2:
        return lambda kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO: chosen(x, a, b)
    return lambda kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO: chosen(x, a, b, c, d)


@cache
def element_kernel(name: str, fmt: int) -> Kernel:
    """The kernel of a function for a type."""
    kind = IDS[name]

    def element(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        p = params_of(node, Element)
        n, parts, out = ne(node, DST, 0), p.parts, p.quantize
        a, b, c, d = p.a, p.b, p.c, p.d
        units = nrows(node, DST) * parts
        for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
            row = u // parts
            begin, end = columns(n, u - row * parts, parts)
            x, y = row_address(node, SRC0, row), row_address(node, DST, row)
            for i in range(begin, end):
                put(fmt, y, i, function(kind, take(fmt, x, i), a, b, c, d))
            if fmt == F32 and out != 0:
                block = row * (n // BLOCK) + begin // BLOCK
                quantize_row(y + 4 * begin, out + block * Q8_BLOCK, end - begin)

    made = kernel(element)
    made.name = f"{name}_{GGMLType(fmt).name.lower()}"
    return made


def supports_element(node: Tensor) -> bool:
    """Floats in rows without gaps."""
    x = node.src[0]
    return x is not None and x.type in ALL_FLOATS and x.is_contiguous_rows()


def lower_element(
    low: Lowering, node: Tensor, name: str, numbers: tuple[float, ...] = (), grain: int = 1024
) -> None:
    """Launch the kernel of a function; ``grain``: elements of a chunk, 1024 are 1 us of exp."""
    parts, chunks = split(low, node, grain)
    made = element_kernel(name, int(node.type))
    params = Element(parts, 0, *numbers)
    low.launch(made, node, params, chunks, quantizes=node.type is GGMLType.F32)
