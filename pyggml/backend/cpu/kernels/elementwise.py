"""The functions of one element that kernels apply: activations, roundings and their like.

    function(IDS["silu"], x)                       # in jitted code; the first argument is a literal

The functions that models use vectorise; ``elu``, ``expm1``, ``softplus`` and ``xielu`` call libm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from ....jit import inline_strict
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

ZERO, HALF, ONE, THREE, SIX = (np.float32(v) for v in (0, 0.5, 1, 3, 6))


@inline_strict
def _sgn(x):
    return ONE if x > ZERO else -ONE if x < ZERO else x


@inline_strict
def _neg(x):
    return -x


@inline_strict
def _step(x):
    return ONE if x > ZERO else ZERO


@inline_strict
def _relu(x):
    return ZERO if x <= ZERO else x  # NaN stays


@inline_strict
def _expm1(x):
    return np.float32(math.expm1(x))


@inline_strict
def _elu(x):
    return x if x > ZERO else _expm1(x)


@inline_strict
def _softplus(x):
    return (x if x > ZERO else ZERO) + np.float32(math.log1p(exp_f32(-abs_f32(x))))


@inline_strict
def _hardsigmoid(x):
    y = (x + THREE) / SIX
    y = ZERO if y < ZERO else y
    return ONE if y > ONE else y


@inline_strict
def _hardswish(x):
    return x * _hardsigmoid(x)


@inline_strict
def _floor(x):
    return np.floor(x)


@inline_strict
def _ceil(x):
    return np.ceil(x)


@inline_strict
def _trunc(x):
    return np.trunc(x)


@inline_strict
def _round(x):
    t = np.trunc(x)
    return t + with_sign(ONE, x) if abs_f32(x - t) >= HALF else t  # half goes away from zero


@inline_strict
def _sqr(x):
    return x * x


@inline_strict
def _sqrt(x):
    return np.sqrt(x)


@inline_strict
def _sin(x):
    return sincos_f32(x)[0]


@inline_strict
def _cos(x):
    return sincos_f32(x)[1]


@inline_strict
def _leaky_relu(x, slope):
    return x if x > ZERO else slope * x


@inline_strict
def _clamp(x, low, high):
    x = high if x > high else x  # NaN stays
    return low if x < low else x


@inline_strict
def _xielu(x, alpha_n, alpha_p, beta, eps):
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
    "sqr": _sqr,  # this and the following are ops of their own
    "sqrt": _sqrt,
    "log": log_f32,
    "sin": _sin,
    "cos": _cos,
    "leaky_relu": _leaky_relu,
    "clamp": _clamp,
}
_NUMBERS = {
    "leaky_relu": 1,
    "clamp": 2,
    "xielu": 4,
}  # parameters of functions
IDS = {kind: i for i, kind in enumerate(FUNCTIONS)}


def function(kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO):
    """Apply a function of ``FUNCTIONS`` in jitted code; ``kind``: its id in ``IDS``, a literal."""
    raise NotImplementedError("for jitted code only")


@overload(function, prefer_literal=True)
def _function(kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO):
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
