"""The functions of one element that kernels apply: activations, roundings and their like.

    FUNCTIONS["silu"](x, a, b, c, d)               # a to d: the op's parameters, see PARAMETERS

All are float32, within a few ulp (libdevice's ``expf``, ``tanhf``, ``erff``, ``logf``), and keep
NaN. ``sincos`` needs no float64 for large angles: with k = round(2 x / pi) and pi / 2 in three
floats P0 + P1 + P2, the difference x - k P0 fits 24 bits as long as k < 2^24, so ``fma(-k, P0, x)``
has no rounding error; the steps with P1 and P2 each add half an ulp.
Source: polynomials of Cephes (``sinf``, ``cosf``); Cody and Waite, "Software Manual for the
Elementary Functions" (the reduction).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import int32, uint32

from ...intrin import bits_to_float, device, float_to_bits, fma, u32

_F = np.float32
ZERO, HALF, ONE, TWO, THREE, SIX = (_F(v) for v in (0, 0.5, 1, 2, 3, 6))
GELU_A = _F(2 * 0.79788456080286535588 * 0.044715)
GELU_B = _F(2 * 0.79788456080286535588)
GELU_QUICK = _F(1.702)
SQRT_HALF = _F(0.70710678118654752440)

TWO_OVER_PI = _F(0.63661977236758134308)
P0, P1, P2 = _F(1.57079637050628662109375), _F(-4.371139000186241e-8), _F(-1.7151249e-15)
SIN0, SIN1, SIN2 = _F(-1.9515295891e-4), _F(8.3321608736e-3), _F(-1.6666654611e-1)
COS0, COS1, COS2 = _F(2.443315711809948e-5), _F(-1.388731625493765e-3), _F(4.166664568298827e-2)
ANGLE_MAX = _F(2.0**24)  # of the quotient 2 x / pi


@device
def sincos(x):
    """(sin x, cos x) of an angle in radians, to 1e-7 up to four million periods."""
    k = math.floor(fma(x, TWO_OVER_PI, HALF))
    r = fma(-k, P1, fma(-k, P0, x))
    k += math.floor(fma(r, TWO_OVER_PI, HALF))  # a large quotient was rounded
    r = fma(-k, P2, fma(-k, P1, fma(-k, P0, x)))
    quadrant = int32(k) if abs(k) < ANGLE_MAX else int32(0)
    z = r * r
    s = fma(fma(fma(SIN0, z, SIN1), z, SIN2), z * r, r)
    c = fma(fma(fma(COS0, z, COS1), z, COS2), z * z, fma(-HALF, z, ONE))
    odd = (quadrant & 1) != 0
    sin = c if odd else s
    cos = s if odd else c
    sin = bits_to_float(u32(float_to_bits(sin) ^ (u32(quadrant & 2) << uint32(30))))
    cos = bits_to_float(u32(float_to_bits(cos) ^ (u32((quadrant + 1) & 2) << uint32(30))))
    return sin, cos


@device
def sigmoid(x, a, b, c, d):
    """1 / (1 + e^-x)."""
    return ONE / (ONE + math.exp(-x))


@device
def silu(x, a, b, c, d):
    """x / (1 + e^-x)."""
    return x / (ONE + math.exp(-x))


@device
def relu(x, a, b, c, d):
    """max(x, 0)."""
    return ZERO if x <= ZERO else x  # NaN stays


@device
def gelu(x, a, b, c, d):
    """x/2 * (1 + tanh(u)), u = sqrt(2/pi) * (x + 0.044715 x^3); the same as x / (1 + e^-2u)."""
    return x / (ONE + math.exp(-x * (GELU_B + GELU_A * (x * x))))


@device
def gelu_quick(x, a, b, c, d):
    """x * sigmoid(1.702 x)."""
    return x / (ONE + math.exp(-GELU_QUICK * x))


@device
def gelu_erf(x, a, b, c, d):
    """x/2 * (1 + erf(x / sqrt(2)))."""
    return HALF * x * (ONE + math.erf(x * SQRT_HALF))


@device
def hardsigmoid(x, a, b, c, d):
    """(x + 3) / 6 within 0 .. 1."""
    y = (x + THREE) / SIX
    y = ZERO if y < ZERO else y
    return ONE if y > ONE else y


@device
def hardswish(x, a, b, c, d):
    """x * hardsigmoid(x)."""
    return x * hardsigmoid(x, a, b, c, d)


@device
def softplus(x, a, b, c, d):
    """log(1 + e^x)."""
    return (x if x > ZERO else ZERO) + math.log1p(math.exp(-abs(x)))


@device
def elu(x, a, b, c, d):
    """x, but e^x - 1 where x is negative."""
    return x if x > ZERO else math.expm1(x)


@device
def sgn(x, a, b, c, d):
    """The sign: -1, 0 or 1."""
    return ONE if x > ZERO else (-ONE if x < ZERO else x)


@device
def step(x, a, b, c, d):
    """1 where x is positive, else 0."""
    return ONE if x > ZERO else ZERO


@device
def round_away(x, a, b, c, d):
    """The nearest integer, of two the one farther from 0."""
    t = math.trunc(x)
    return t + (ONE if x > ZERO else -ONE) if abs(x - t) >= HALF else t


@device
def xielu(x, alpha_n, alpha_p, beta, eps):
    """xIELU."""
    if x > ZERO:
        return alpha_p * x * x + beta * x
    return (math.expm1(eps if x > eps else x) - x) * alpha_n + beta * x


@device
def clamp(x, low, high, c, d):
    """x, at most ``high`` and then at least ``low``."""
    x = high if x > high else x  # NaN stays
    return low if x < low else x


@device
def leaky_relu(x, slope, b, c, d):
    """x where it is positive, else slope * x."""
    return x if x > ZERO else slope * x


@device
def scale(x, s, b, c, d):
    """s * x + b."""
    return fma(s, x, b)


@device
def _sin(x, a, b, c, d):
    return sincos(x)[0]


@device
def _cos(x, a, b, c, d):
    return sincos(x)[1]


def _plain(function: Callable[[Any], Any]) -> Any:
    inner = device(function)

    @device
    def apply(x, a, b, c, d):
        return inner(x)

    return apply


FUNCTIONS: dict[str, Any] = {
    "abs": _plain(lambda x: abs(x)),
    "neg": _plain(lambda x: -x),
    "tanh": _plain(lambda x: math.tanh(x)),
    "exp": _plain(lambda x: math.exp(x)),
    "expm1": _plain(lambda x: math.expm1(x)),
    "log": _plain(lambda x: math.log(x)),
    "floor": _plain(lambda x: math.floor(x)),
    "ceil": _plain(lambda x: math.ceil(x)),
    "trunc": _plain(lambda x: math.trunc(x)),
    "sqr": _plain(lambda x: x * x),
    "sqrt": _plain(lambda x: math.sqrt(x)),
    "sgn": sgn,
    "step": step,
    "elu": elu,
    "relu": relu,
    "sigmoid": sigmoid,
    "gelu": gelu,
    "gelu_quick": gelu_quick,
    "gelu_erf": gelu_erf,
    "silu": silu,
    "hardswish": hardswish,
    "hardsigmoid": hardsigmoid,
    "softplus": softplus,
    "round": round_away,
    "xielu": xielu,
    "clamp": clamp,
    "leaky_relu": leaky_relu,
    "scale": scale,
    "sin": _sin,
    "cos": _cos,
}
# The op parameters that functions take, as their arguments a to d
PARAMETERS = {
    "leaky_relu": ("negative_slope",),
    "clamp": ("min", "max"),
    "scale": ("s", "b"),
    "xielu": ("alpha_n", "alpha_p", "beta", "eps"),
}
