"""The formulas of element-wise functions, each written once over primitives of a backend.

    FUNCTIONS = formulas(Primitives(number=np.float32, exp=..., ...))
    y = FUNCTIONS["silu"](x)                       # of other arguments: ``PARAMETERS``

Compiled kernels call a formula with one number, the reference with an array of float64. NaN
propagates through all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..op import Array

Formula = Callable[..., Any]


class Primitives(NamedTuple):
    """What formulas are made of.

    Attributes:
        number: makes a constant.
        declare: (name, formula) -> the function that kernels and other formulas call.
        where: (condition, a, b) -> a where the condition holds, else b; both are computed.
        with_sign: (magnitude, x) -> the magnitude with the sign of x, which is not 0.
    """

    number: Formula
    declare: Callable[[str, Formula], Formula]
    where: Formula
    with_sign: Formula
    abs: Formula
    exp: Formula
    expm1: Formula
    log: Formula
    log1p: Formula
    tanh: Formula
    erf: Formula
    sqrt: Formula
    sin: Formula
    cos: Formula
    floor: Formula
    ceil: Formula
    trunc: Formula


# The op parameters that functions take after x
PARAMETERS = {
    "leaky_relu": ("negative_slope",),
    "scale": ("s", "b"),
    "clamp": ("min", "max"),
    "xielu": ("alpha_n", "alpha_p", "beta", "eps"),
}
LIMITED = "limited"  # a GLU: (gate, up, alpha, limit, shift)
SMOOTH = ("silu", "gelu", "gelu_quick", "gelu_erf")  # each has a gradient f"{kind}_back": (dy, x)
_SOURCES_AFTER_X = {
    **dict.fromkeys(("add", "sub", "mul", "div", *(f"{kind}_back" for kind in SMOOTH)), 1),
    LIMITED: 4,  # up, and three parameters
}


def formulas(p: Primitives) -> dict[str, Formula]:
    """All functions, by the kinds of UNARY and the names of other ops; and ``LIMITED``."""
    number, where, with_sign, abs, exp, expm1 = (
        p.number,
        p.where,
        p.with_sign,
        p.abs,
        p.exp,
        p.expm1,
    )
    log1p, erf, trunc = p.log1p, p.erf, p.trunc
    zero, half, one, three, six = (number(v) for v in (0, 0.5, 1, 3, 6))
    gelu_b = 2 * math.sqrt(2 / math.pi)
    gelu_a, gelu_b = number(gelu_b * 0.044715), number(gelu_b)
    quick, sqrt_half = number(1.702), number(math.sqrt(0.5))
    density_0 = number(1 / math.sqrt(2 * math.pi))  # of the normal distribution at 0

    def sgn(x: Any) -> Any:
        return where(x > zero, one, where(x < zero, -one, x))

    def relu(x: Any) -> Any:
        return where(x <= zero, zero, x)

    def gelu(
        x: Any,
    ) -> Any:  # x/2 * (1 + tanh(u)), u = sqrt(2/pi) * (x + 0.044715 x^3), is x / (1 + e^-2u)
        return x / (one + exp(-x * (gelu_b + gelu_a * (x * x))))

    def hardsigmoid(x: Any) -> Any:
        y = (x + three) / six
        y = where(y < zero, zero, y)
        return where(y > one, one, y)

    hardsigmoid_of_x = p.declare("hardsigmoid", hardsigmoid)

    def round(x: Any) -> Any:  # half goes away from zero
        t = trunc(x)
        return where(abs(x - t) >= half, t + with_sign(one, x), t)

    def clamp(x: Any, low: Any, high: Any) -> Any:
        x = where(x > high, high, x)
        return where(x < low, low, x)

    def xielu(x: Any, alpha_n: Any, alpha_p: Any, beta: Any, eps: Any) -> Any:
        negative = (expm1(where(x > eps, eps, x)) - x) * alpha_n + beta * x
        return where(x > zero, alpha_p * x * x + beta * x, negative)

    def limited(gate: Any, up: Any, alpha: Any, limit: Any, shift: Any) -> Any:
        gate = where(gate > limit, limit, gate)
        up = where(up > limit, limit, up)
        up = where(up < -limit, -limit, up)
        return gate / (one + exp(-alpha * gate)) * (up + shift)

    def swish_back(dy: Any, x: Any, s: Any, slope: Any) -> Any:
        # of y = x * s with s = sigmoid(u(x)), slope = u'(x)
        return dy * (s + x * s * (one - s) * slope)

    swish_back_of = p.declare("swish_back", swish_back)

    def gelu_back(dy: Any, x: Any) -> Any:
        s = one / (one + exp(-x * (gelu_b + gelu_a * (x * x))))
        return swish_back_of(dy, x, s, gelu_b + three * gelu_a * (x * x))

    def gelu_erf_back(dy: Any, x: Any) -> Any:
        density = exp(-half * (x * x)) * density_0
        return dy * (half * (one + erf(x * sqrt_half)) + x * density)

    declared: dict[str, Formula] = {
        "sgn": sgn,
        "neg": lambda x: -x,
        "step": lambda x: where(x > zero, one, zero),
        "relu": relu,
        "elu": lambda x: where(x > zero, x, expm1(x)),
        "sigmoid": lambda x: one / (one + exp(-x)),
        "gelu": gelu,
        "gelu_quick": lambda x: x / (one + exp(-quick * x)),
        "gelu_erf": lambda x: half * x * (one + erf(x * sqrt_half)),
        "silu": lambda x: x / (one + exp(-x)),
        "softplus": lambda x: where(x > zero, x, zero) + log1p(exp(-abs(x))),
        "hardsigmoid": hardsigmoid,
        "hardswish": lambda x: x * hardsigmoid_of_x(x),
        "round": round,
        "xielu": xielu,
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "div": lambda x, y: x / y,
        "sqr": lambda x: x * x,
        "leaky_relu": lambda x, slope: where(x > zero, x, slope * x),
        "clamp": clamp,
        "scale": lambda x, s, b: x * s + b,
        LIMITED: limited,
        "silu_back": lambda dy, x: swish_back_of(dy, x, one / (one + exp(-x)), one),
        "gelu_back": gelu_back,
        "gelu_quick_back": lambda dy, x: swish_back_of(dy, x, one / (one + exp(-quick * x)), quick),
        "gelu_erf_back": gelu_erf_back,
    }
    primitives = ("abs", "exp", "expm1", "log", "tanh", "sqrt", "sin", "cos", "floor", "ceil")
    return {
        **{name: getattr(p, name) for name in (*primitives, "trunc")},
        **{name: p.declare(name, formula) for name, formula in declared.items()},
    }


def with_four(name: str, function: Formula) -> Formula:
    """``function`` of (x, a, b, c, d), of which it takes as many as it needs."""
    takes: tuple[Formula, ...] = (
        lambda x, a, b, c, d: function(x),
        lambda x, a, b, c, d: function(x, a),
        lambda x, a, b, c, d: function(x, a, b),
        lambda x, a, b, c, d: function(x, a, b, c),
        lambda x, a, b, c, d: function(x, a, b, c, d),
    )
    return takes[_SOURCES_AFTER_X.get(name) or len(PARAMETERS.get(name, ()))]


_REFERENCE = formulas(
    Primitives(
        number=float,
        declare=lambda name, formula: formula,
        where=np.where,
        with_sign=np.copysign,
        erf=np.vectorize(math.erf, otypes=[np.float64]),
        **{name: getattr(np, name) for name in Primitives._fields[4:] if name != "erf"},
    )
)


def reference(name: str, x: Array, *arguments: Any) -> Array:
    """A function of float32 numbers, in float64."""
    with np.errstate(all="ignore"):
        out: Array = _REFERENCE[name](x.astype(np.float64), *arguments)
    return out
