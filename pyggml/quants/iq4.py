"""IQ4_NL and IQ4_XS: codes of 4 bits that choose among 16 unevenly spaced values.

    x[j] = d * VALUES[q[j]]                        # IQ4_NL: 32 codes with one scale
    x[j] = d * (s[j / 32] - 32) * VALUES[q[j]]     # IQ4_XS: 8 such groups, scales of 6 bits

Source: ggml, ``quantize_row_iq4_nl_impl``: of 16 scales, the one with the smallest weighted squared
error of the nearest codes. The weights are x^2, or with importance weights w * sqrt(s + x^2), where
s is twice the mean of x^2. In blocks of 256 the largest of the groups' scales becomes -32, and
codes are chosen again for the rounded scales.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Bits, BlockType, Bytes, Floats, half, nibbles, register
from .search import first_largest

VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
TRIES = 7  # scales around the first that are tried, to each side
SMALLEST = np.float32(1e-15)  # below it a block is zero
_VALUES = np.array(VALUES, np.float32)


def _nearest(x: Floats) -> Bytes:
    """The codes of the nearest values; of two that are as near the upper one."""
    above = np.clip(np.searchsorted(_VALUES, x, side="right"), 1, 15)
    low = x - _VALUES[above - 1] < _VALUES[above] - x
    return (above - low).astype(np.uint8)


def _search(x: Floats, importance: Floats) -> Floats:
    """The scales [n] of groups [n, 32] that fit best under importance weights [n, 32]."""

    def fit(inverse: Floats) -> tuple[Floats, Floats]:
        q = _VALUES[_nearest(inverse[:, None] * x)]
        weighted = importance * q
        products, squares = (np.add.accumulate(weighted * v, axis=1) for v in (x, q))
        return products[:, -1], squares[:, -1]  # summed from left to right

    top = first_largest(x)
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


def _importance(x: Floats, weights: Floats | None) -> Floats:
    """The weights of the errors of blocks [n, size], with importance weights or without."""
    with np.errstate(over="ignore"):
        if weights is None:
            return x * x
        spread = np.add.accumulate(x * x, axis=1)[:, -1:] * np.float32(2 / x.shape[1])
        out: Floats = weights * np.sqrt(spread + x * x)
    return out


def encode_nl(f: BlockType, x: Floats, weights: Floats | None) -> Bytes:
    """float32 [n, 32] -> blocks [n]."""
    d = _search(x, _importance(x, weights))
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(d != 0, np.float32(1) / d, np.float32(0))
        codes = _nearest(inverse[:, None] * x)
    return f.blocks(d, codes=codes)


def encode_xs(f: BlockType, x: Floats, weights: Floats | None) -> Bytes:
    """float32 [n, 256] -> blocks [n]."""
    groups = x.reshape(-1, 32)
    scales = _search(groups, _importance(x, weights).reshape(groups.shape)).reshape(-1, 8)
    largest = first_largest(scales)[:, None]
    d = -(largest + np.float32(0)) / np.float32(32)  # [n, 1]; of zeros it is -0
    with np.errstate(all="ignore"):
        inverse = np.where(d != 0, np.float32(1) / d, np.float32(0))
        steps = np.clip(np.rint(inverse * scales), -32, 31)
        scale = d * steps
        inverse = np.where(scale != 0, np.float32(1) / scale, np.float32(0))
        codes = _nearest(inverse.reshape(-1, 1) * groups).reshape(x.shape)
        steps = (steps + 32).astype(np.uint8)
    return f.blocks(d[:, 0], steps=steps, codes=codes)


IQ4_NL = register(BlockType(GGMLType.IQ4_NL, nibbles(2), half(0), values=VALUES, encode=encode_nl))
IQ4_XS = register(
    BlockType(
        GGMLType.IQ4_XS,
        nibbles(8, 256),
        half(0),
        values=VALUES,
        steps=(Bits(4, 8 * 4, (8,), (4,)), Bits(2, 8 * 2, (8,), (2,), shift=4)),
        step_zero=32,
        encode=encode_xs,
    )
)
