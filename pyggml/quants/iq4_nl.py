"""IQ4_NL: 32 codes of 4 bits that choose among 16 unevenly spaced values, with one scale.

    x[j] = d * VALUES[q[j]]

Source: ggml, ``quantize_row_iq4_nl_impl``: of 16 scales the one whose nearest codes fit best, in
weighted least squares; the weights are x squared, or with importance weights w * sqrt(s + x^2),
where s is twice the mean of x squared.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, pack_nibbles, register, unpack_nibbles

DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
TRIES = 7  # scales around the first that are tried, to each side
SMALLEST = np.float32(1e-15)  # below it a block is zero
_VALUES = np.array(VALUES, np.float32)


def nearest(x: Floats) -> npt.NDArray[np.uint8]:
    """The codes of the nearest values; of two that are as near the upper one."""
    above = np.clip(np.searchsorted(_VALUES, x, side="right"), 1, 15)
    low = x - _VALUES[above - 1] < _VALUES[above] - x
    return (above - low).astype(np.uint8)


def search(x: Floats, importance: Floats) -> Floats:
    """The scales [n] of groups [n, 32] that fit best under importance weights [n, 32]."""

    def fit(inverse: Floats) -> tuple[Floats, Floats]:
        q = _VALUES[nearest(inverse[:, None] * x)]
        weighted = importance * q
        products, squares = (np.add.accumulate(weighted * v, axis=1) for v in (x, q))
        return products[:, -1], squares[:, -1]  # summed from left to right

    top = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0]
    with np.errstate(all="ignore"):  # quotients that are not chosen
        xq, qq = fit(np.float32(1) / (-top / _VALUES[0]))
        d = np.where(qq > 0, xq / qq, np.float32(0))
        best = d * xq
        for step in range(-TRIES, TRIES + 1):
            xq, qq = fit((_VALUES[0] + np.float32(step)) / top)
            better = (qq > 0) & (xq * xq > best * qq)
            d = np.where(better, xq / qq, d)
            best = np.where(better, d * xq, best)
    out: Floats = np.where(np.abs(top) < SMALLEST, np.float32(0), d)
    return out


def importance(x: Floats, weights: Floats | None) -> Floats:
    """What errors of blocks [n, size] weigh, given importance weights or none."""
    with np.errstate(over="ignore"):
        if weights is None:
            return x * x
        spread = np.add.accumulate(x * x, axis=1)[:, -1:] * np.float32(2 / x.shape[1])
        out: Floats = weights * np.sqrt(spread + x * x)
    return out


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 32], importance weights of the same shape or none -> blocks [n]."""
    d = search(x, importance(x, weights))
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(d != 0, np.float32(1) / d, np.float32(0))
        blocks = np.empty(len(x), DTYPE)
        blocks["qs"] = pack_nibbles(nearest(inverse[:, None] * x))
    blocks["d"] = d
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 32]."""
    out: Floats = blocks["d"].astype(np.float32)[:, None] * _VALUES[unpack_nibbles(blocks["qs"])]
    return out


IQ4_NL = register(BlockType(GGMLType.IQ4_NL, DTYPE, quantize_blocks, dequantize_blocks))
