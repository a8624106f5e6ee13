"""Transcendental functions of float32 that LLVM vectorises: plain arithmetic, no calls.

    y[i] = exp_f32(x[i])                          # in a jitted loop: eight lanes at a time on AVX2
    y = exp(b, x)                                 # emits it for a vector x

Every function takes and returns float32, keeps NaN and is within 2 ulp (``exp_f32``,
``log_f32``, ``tanh_f32``, ``erf_f32``) of the true value where the result is a normal number.
Results below the smallest normal number are 0. Reassociation stays off in here: rounding by a magic
number and split constants would be folded away.
Source: polynomials of Cephes (``expf``, ``logf``, ``tanhf``, ``sinf``, ``cosf``) and of N. Juffa
(``erff``).
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from numba import types

from ....compiler.jit import intrinsic_from_ir
from ..abi import bits_f32, f32_bits
from .vector import i32, i64, like, with_element

contracted = nb.njit(nogil=True, error_model="numpy", fastmath={"contract"})

_F = np.float32
ZERO, HALF, ONE, TWO, INF = _F(0), _F(0.5), _F(1), _F(2), _F(np.inf)
SIGN, MAGNITUDE = np.int32(-(2**31)), np.int32(2**31 - 1)
# Adding it leaves the nearest integer (ties to even) in the low bits.
MAGIC = _F(1.5 * 2**23)
MAGIC_F64 = 1.5 * 2.0**52

LOG2E = _F(1.4426950408889634)
LN2_HIGH, LN2_LOW = _F(0.693359375), _F(-2.12194440e-4)  # the high part has few bits
EXP_MAX = _F(88.722839)  # the largest x whose exp is finite
EXP_MIN = _F(-87.336544)  # the smallest x whose exp is a normal number
E0, E1, E2 = _F(1.9875691500e-4), _F(1.3981999507e-3), _F(8.3334519073e-3)
E3, E4, E5 = _F(4.1665795894e-2), _F(1.6666665459e-1), _F(5.0000001201e-1)


def exp(b: Any, x: Any) -> Any:
    """Emit e^x of a float or a vector of floats."""
    contract = {"flags": ["contract"]}

    def mul_add(x: Any, y: Any, z: Any) -> Any:
        return b.fadd(b.fmul(x, y, **contract), z, **contract)

    def num(value: np.float32) -> Any:
        return like(x, float(value))

    t = mul_add(x, num(LOG2E), num(MAGIC))
    n = b.fsub(t, num(MAGIC), **contract)
    r = x
    for ln2 in (LN2_HIGH, LN2_LOW):
        r = b.fsub(r, b.fmul(n, num(ln2), **contract), **contract)
    p = num(E0)
    for coefficient in (E1, E2, E3, E4, E5):
        p = mul_add(p, r, num(coefficient))
    p = b.fadd(mul_add(p, b.fmul(r, r, **contract), r), num(ONE), **contract)
    bits, power = (b.bitcast(v, with_element(x, i32)) for v in (p, t))
    y = b.bitcast(b.add(bits, b.shl(power, like(power, 23))), x.type)  # p * 2^n
    y = b.select(b.fcmp_ordered(">=", x, num(EXP_MIN)), y, num(ZERO))
    return b.select(b.fcmp_ordered("<=", x, num(EXP_MAX)), y, b.fadd(x, num(INF)))  # inf, or NaN


@intrinsic_from_ir(result=types.float32, args=(types.float32,))
def exp_f32(b: Any, x: Any) -> Any:
    """e^x."""
    return exp(b, x)


SQRT_HALF_BITS, MANTISSA = np.int32(0x3F3504F3), np.int32(0x7FFFFF)
SMALLEST, UP, UP_BITS = _F(2.0**-126), _F(2.0**23), _F(23)
NAN = _F(np.nan)
G0, G1, G2 = _F(7.0376836292e-2), _F(-1.1514610310e-1), _F(1.1676998740e-1)
G3, G4, G5 = _F(-1.2420140846e-1), _F(1.4249322787e-1), _F(-1.6668057665e-1)
G6, G7, G8 = _F(2.0000714765e-1), _F(-2.4999993993e-1), _F(3.3333331174e-1)


@contracted
def log_f32(x):
    """The natural logarithm: -inf of 0, NaN of negative numbers."""
    tiny = x < SMALLEST
    bits = np.int32(f32_bits(x * UP if tiny else x) - SQRT_HALF_BITS)
    n = np.float32(bits >> 23) - (UP_BITS if tiny else ZERO)
    r = bits_f32(np.int32((bits & MANTISSA) + SQRT_HALF_BITS)) - ONE  # x = (1 + r) * 2^n
    z = r * r
    p = (((((((G0 * r + G1) * r + G2) * r + G3) * r + G4) * r + G5) * r + G6) * r + G7) * r + G8
    y = p * (r * z) + n * LN2_LOW - HALF * z + r + n * LN2_HIGH
    y = y if x > ZERO else (-INF if x == ZERO else NAN)
    return y if x < INF else x  # inf, or NaN


@contracted
def log1p_f32(x):
    """log(1 + x) for x from 0 to 1."""
    u = ONE + x
    return log_f32(u) + (x - (u - ONE)) / u  # the second term mends the rounding of u


@contracted
def with_sign(magnitude, x):
    """The magnitude of the first with the sign of the second."""
    return bits_f32((f32_bits(magnitude) & MAGNITUDE) | (f32_bits(x) & SIGN))


@contracted
def abs_f32(x):
    """|x|."""
    return bits_f32(f32_bits(x) & MAGNITUDE)


T0, T1, T2 = _F(-5.70498872745e-3), _F(2.06390887954e-2), _F(-5.37397155531e-2)
T3, T4, TANH_SMALL = _F(1.33314422036e-1), _F(-3.33332819422e-1), _F(0.625)


@contracted
def tanh_f32(x):
    """Hyperbolic tangent."""
    z = x * x
    small = ((((T0 * z + T1) * z + T2) * z + T3) * z + T4) * (z * x) + x
    a = abs_f32(x)
    large = with_sign(ONE - TWO / (ONE + exp_f32(a + a)), x)
    return small if a < TANH_SMALL else large


L0, L1, L2 = _F(-1.72853470e-5), _F(3.83197126e-4), _F(-3.88396438e-3)
L3, L4, L5, L6 = _F(2.42546219e-2), _F(-1.06777877e-1), _F(-6.34846687e-1), _F(-1.28717512e-1)
S0, S1, S2 = _F(-5.96761703e-4), _F(4.99119423e-3), _F(-2.67681349e-2)
S3, S4, S5 = _F(1.12819925e-1), _F(-3.76125336e-1), _F(1.28379166e-1)
ERF_SMALL, ERF_MAX = _F(0.927734375), _F(4.0)


@contracted
def erf_f32(x):
    """The error function."""
    s, a = x * x, abs_f32(x)
    small = (((((S0 * s + S1) * s + S2) * s + S3) * s + S4) * s + S5) * x + x
    t = ERF_MAX if a > ERF_MAX else a  # erf is 1 from there on
    u = (L0 * t + L1) * (t * t) + (L2 * t + L3)
    u = ((u * t + L4) * t + L5) * t + L6
    large = with_sign(ONE - exp_f32(u * t - t), x)
    return small if a <= ERF_SMALL else large


@intrinsic_from_ir(result=types.int64, args=(types.float64,))
def f64_bits(b: Any, x: Any) -> Any:
    """The 64 bits of a float64."""
    return b.bitcast(x, i64)


SIN0, SIN1, SIN2 = _F(-1.9515295891e-4), _F(8.3321608736e-3), _F(-1.6666654611e-1)
COS0, COS1, COS2 = _F(2.443315711809948e-5), _F(-1.388731625493765e-3), _F(4.166664568298827e-2)
TWO_OVER_PI, PI_OVER_2 = 0.63661977236758134308, 1.57079632679489661923


@contracted
def sincos_f32(x):
    """(sin x, cos x) of an angle in radians, to 1e-7 up to a million periods."""
    t = np.float64(x) * TWO_OVER_PI + MAGIC_F64
    quadrant = np.int32(f64_bits(t))
    r = np.float32(np.float64(x) - (t - MAGIC_F64) * PI_OVER_2)
    z = r * r
    s = ((SIN0 * z + SIN1) * z + SIN2) * (z * r) + r
    c = ((COS0 * z + COS1) * z + COS2) * (z * z) - HALF * z + ONE
    sin, cos = (c, s) if quadrant & 1 else (s, c)
    sin = bits_f32(np.int32(f32_bits(sin) ^ ((quadrant & 2) << 30)))
    cos = bits_f32(np.int32(f32_bits(cos) ^ (((quadrant + 1) & 2) << 30)))
    return sin, cos
