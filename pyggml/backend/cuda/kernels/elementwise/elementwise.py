"""The functions of one element that kernels apply: activations, roundings and their like.

    FUNCTIONS["silu"](x, a, b, c, d)               # a to d: the op's parameters

All are float32, within a few ulp (libdevice's ``expf``, ``tanhf``, ``erff``, ``logf``), and keep
NaN. ``sincos`` needs no float64 for large angles: with k = round(2 x / pi) and pi / 2 in three
floats P0 + P1 + P2, the difference x - k P0 fits 24 bits as long as k < 2^24, so ``fma(-k, P0, x)``
has no rounding error; the steps with P1 and P2 each add half an ulp.
Source: polynomials of Cephes (``sinf``, ``cosf``); Cody and Waite, "Software Manual for the
Elementary Functions" (the reduction).
"""

import math

import numpy as np
from numba import int32, uint32

from .....ops.elementwise.formulas import Primitives, formulas, with_four
from ...intrin import bits_to_float, device, float_to_bits, fma, u32

_F = np.float32
ZERO, HALF, ONE = _F(0), _F(0.5), _F(1)
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


FORMULAS = formulas(
    Primitives(
        number=_F,
        declare=lambda name, formula: device(formula),
        where=device(lambda condition, a, b: a if condition else b),
        with_sign=device(lambda magnitude, x: magnitude if x > ZERO else -magnitude),
        abs=abs,
        exp=math.exp,
        expm1=math.expm1,
        log=math.log,
        log1p=math.log1p,
        tanh=math.tanh,
        erf=math.erf,
        sqrt=math.sqrt,
        sin=device(lambda x: sincos(x)[0]),
        cos=device(lambda x: sincos(x)[1]),
        floor=math.floor,
        ceil=math.ceil,
        trunc=math.trunc,
    )
)
# Each of (x, a, b, c, d), which are the op's parameters
FUNCTIONS = {name: device(with_four(name, function)) for name, function in FORMULAS.items()}
