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

from .....compiler.jit import inline_strict
from ...simd.math import (
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
def _expm1(x):
    return np.float32(math.expm1(x))


@inline_strict
def _hardsigmoid(x):
    y = (x + THREE) / SIX
    y = ZERO if y < ZERO else y
    return ONE if y > ONE else y


@inline_strict
def _round(x):
    t = np.trunc(x)
    return t + with_sign(ONE, x) if abs_f32(x - t) >= HALF else t  # half goes away from zero


@inline_strict
def _clamp(x, low, high):
    x = high if x > high else x  # NaN stays
    return low if x < low else x


@inline_strict
def _xielu(x, alpha_n, alpha_p, beta, eps):
    if x > ZERO:
        return alpha_p * x * x + beta * x
    return (_expm1(eps if x > eps else x) - x) * alpha_n + beta * x


_FORMULAS: dict[str, Callable[..., Any]] = {
    "sgn": lambda x: ONE if x > ZERO else -ONE if x < ZERO else x,
    "neg": lambda x: -x,
    "step": lambda x: ONE if x > ZERO else ZERO,
    "relu": lambda x: ZERO if x <= ZERO else x,  # NaN stays
    "elu": lambda x: x if x > ZERO else _expm1(x),
    "softplus": lambda x: (x if x > ZERO else ZERO) + np.float32(math.log1p(exp_f32(-abs_f32(x)))),
    "hardswish": lambda x: x * _hardsigmoid(x),
    "floor": lambda x: np.floor(x),
    "ceil": lambda x: np.ceil(x),
    "trunc": lambda x: np.trunc(x),
    "sqr": lambda x: x * x,
    "sqrt": lambda x: np.sqrt(x),
    "sin": lambda x: sincos_f32(x)[0],
    "cos": lambda x: sincos_f32(x)[1],
    "leaky_relu": lambda x, slope: x if x > ZERO else slope * x,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: inline_strict(formula) for name, formula in _FORMULAS.items()},
    "abs": abs_f32,
    "tanh": tanh_f32,
    "sigmoid": sigmoid_f32,
    "gelu": gelu_f32,
    "gelu_quick": gelu_quick_f32,
    "silu": silu_f32,
    "hardsigmoid": _hardsigmoid,
    "exp": exp_f32,
    "expm1": _expm1,
    "gelu_erf": gelu_erf_f32,
    "round": _round,
    "xielu": _xielu,
    "log": log_f32,
    "clamp": _clamp,
}
# The op parameters that functions take
PARAMETERS = {
    "leaky_relu": ("negative_slope",),
    "clamp": ("min", "max"),
    "xielu": ("alpha_n", "alpha_p", "beta", "eps"),
}
IDS = {kind: i for i, kind in enumerate(FUNCTIONS)}


def function(kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO):
    """Apply a function of ``FUNCTIONS`` in jitted code; ``kind``: its id in ``IDS``, a literal."""
    raise NotImplementedError("for jitted code only")


@overload(function, prefer_literal=True)
def _function(kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO):
    if not isinstance(kind, types.IntegerLiteral):
        return None
    name = [*FUNCTIONS][kind.literal_value]
    chosen, numbers = FUNCTIONS[name], len(PARAMETERS.get(name, ()))
    if numbers == 0:
        return lambda kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO: chosen(x)
    if numbers == 1:
        return lambda kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO: chosen(x, a)
    if numbers == 2:
        return lambda kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO: chosen(x, a, b)
    return lambda kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO: chosen(x, a, b, c, d)
