"""The functions of one element that kernels apply: activations, roundings and their like.

    function(IDS["silu"], x)                       # in jitted code; the first argument is a literal

The functions that models use vectorise; ``elu``, ``expm1`` and ``xielu`` call libm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from .....compiler.jit import inline_strict
from .....ops.elementwise.formulas import SMOOTH, Primitives, formulas, with_four
from ...simd.math import (
    ZERO,
    abs_f32,
    contracted,
    erf_f32,
    exp_f32,
    log1p_f32,
    log_f32,
    sincos_f32,
    tanh_f32,
    with_sign,
)

MATH_GRAIN = 1024  # elements of a chunk, at least, of a function with exp: 1 us
# LLVM may use multiply-adds in these
_CONTRACTED = ("sigmoid", *SMOOTH, *(f"{name}_back" for name in ("swish", *SMOOTH)))


def _declare(name: str, formula: Callable[..., Any]) -> Any:
    return (contracted if name in _CONTRACTED else inline_strict)(formula)


FUNCTIONS = formulas(
    Primitives(
        number=np.float32,
        declare=_declare,
        where=inline_strict(lambda condition, a, b: a if condition else b),
        with_sign=with_sign,
        abs=abs_f32,
        exp=exp_f32,
        expm1=inline_strict(lambda x: np.float32(math.expm1(x))),
        log=log_f32,
        log1p=log1p_f32,
        tanh=tanh_f32,
        erf=erf_f32,
        sqrt=np.sqrt,
        sin=inline_strict(lambda x: sincos_f32(x)[0]),
        cos=inline_strict(lambda x: sincos_f32(x)[1]),
        floor=np.floor,
        ceil=np.ceil,
        trunc=np.trunc,
    )
)
IDS = {kind: i for i, kind in enumerate(FUNCTIONS)}


def function(kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO):
    """Apply a function of ``FUNCTIONS`` in jitted code; ``kind``: its id in ``IDS``, a literal."""
    raise NotImplementedError("for jitted code only")


@overload(function, prefer_literal=True)
def _function(kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO):
    if not isinstance(kind, types.IntegerLiteral):
        return None
    name = [*FUNCTIONS][kind.literal_value]
    chosen = inline_strict(with_four(name, FUNCTIONS[name]))
    return lambda kind, x, a=ZERO, b=ZERO, c=ZERO, d=ZERO: chosen(x, a, b, c, d)
