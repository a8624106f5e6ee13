"""TIMESTEP_EMBEDDING: the time of a diffusion model as cosines and sines.

emb = timestep_embedding(ctx, t, 320)          # [320, n]
"""

from __future__ import annotations

from math import exp, log

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import F32, Array, Out, arg, case, define_op, require, source

__all__ = ["timestep_embedding"]


def _infer(t: Tensor, dim: int, max_period: int) -> Out:
    op = "TIMESTEP_EMBEDDING"
    require(t.nrows == 1 and dim > 0, op, f"t {t.ne} must be a vector, dim {dim} positive")
    require(max_period > 0, op, f"max_period {max_period} must be positive")
    return Out(F32, (dim, t.ne[0], 1, 1))


def frequency_ratio(dim: int, max_period: int) -> float:
    """The ratio of a frequency to the previous one."""
    return exp(-log(max_period) / max(1, dim // 2))


def _timestep_embedding(t: Array, dim: int, max_period: int) -> Array:
    half = dim // 2
    freqs = frequency_ratio(dim, max_period) ** np.arange(half)
    angles = t.reshape(-1, 1).astype(np.float64) * freqs
    out = np.zeros((1, 1, t.size, dim))
    out[..., :half], out[..., half : 2 * half] = np.cos(angles), np.sin(angles)
    return out


TIMESTEP_EMBEDDING = define_op(
    "TIMESTEP_EMBEDDING",
    src={"t": source(F32)},
    params={"dim": 2, "max_period": 10000},
    infer=_infer,
    reference=_timestep_embedding,
    cases=lambda: [
        case(arg(1)),
        case(arg(1), dim=1),
        case(arg(2, low=0, high=1000), dim=320),
        case(arg(17, low=-10, high=10), dim=15, max_period=100),
    ],
    doc="Cosines, then sines, of `t` at `dim // 2` frequencies; an odd last element is 0.",
)


def timestep_embedding(ctx: Context, t: Tensor, dim: int, max_period: int = 10000) -> Tensor:
    """Cosines and sines of each time at frequencies from 1 down to ``1 / max_period``.

    Shape:
        t F32 [n] -> F32 [dim, n]
    """
    return TIMESTEP_EMBEDDING.build(ctx, t, dim=dim, max_period=max_period)
