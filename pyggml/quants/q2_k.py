"""Q2_K: 256 codes of 2 bits; each 16 have a scale and a minimum of 4 bits.

    x[j] = d * scale[j // 16] * q[j] - dmin * min[j // 16]

Source: ggml, ``quantize_row_q2_K_ref``, ``quantize_row_q2_K_impl`` and ``dequantize_row_q2_K``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .affine import AffineSearch, fit_affine
from .block import Blocks, BlockType, Floats, register
from .exact import F, Ints, nearest_int, ordered_sum
from .superblock import SUPERBLOCK, pack_pairs, recode, spread_weights, unpack_pairs
from .symmetric import fit_positive

DTYPE = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
SEARCH = AffineSearch(top=3, start=-0.5, stride=0.1, steps=15, absolute=True)
WEIGHTED = AffineSearch(top=3, start=-0.9, stride=0.05, steps=36)
GROUP, GROUPS, TOP = 16, 16, 15


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 256] -> blocks [n]."""
    blocks = np.empty(len(x), DTYPE)
    groups = x.reshape(-1, GROUP)  # [n * 16, 16]
    if weights is None:
        w, search = np.abs(groups), SEARCH
    else:
        w, search = spread_weights(x, weights, 1).reshape(-1, GROUP), WEIGHTED
    scale, low, codes = fit_affine(groups, w, search)
    scale, low = scale.reshape(-1, GROUPS), -low.reshape(-1, GROUPS)
    if weights is None:
        (d, scales), (dmin, mins) = _by_largest(scale), _by_largest(low)
    else:
        group_weights = ordered_sum(w).reshape(-1, GROUPS)
        (d, scales), (dmin, mins) = (fit_positive(s, group_weights, TOP) for s in (scale, low))
    blocks["d"], blocks["dmin"] = d, dmin
    blocks["scales"] = scales | mins << 4
    d, low = _steps(blocks)
    shape = (-1, GROUPS, GROUP)
    blocks["qs"] = pack_pairs(recode(x.reshape(shape), d, low, (0, 3), codes.reshape(shape)))
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    d, low = _steps(blocks)
    q = unpack_pairs(blocks["qs"]).reshape(-1, GROUPS, GROUP).astype(np.float32)
    out: Floats = d[..., None] * q - low[..., None]
    return out.reshape(-1, SUPERBLOCK)


def _by_largest(x: Floats) -> tuple[Floats, Ints]:
    """A step that makes the largest of 16 values 15, and their codes."""
    high = np.maximum(x.max(axis=1), F(0))
    codes = nearest_int((F(TOP) / high)[:, None] * x)
    return high / F(TOP), np.where(high[:, None] > 0, codes, 0)


def _steps(blocks: Blocks) -> tuple[Floats, Floats]:
    """Scale and minimum of each sub-block, [n, 16] both, from what is stored."""
    scales, mins = blocks["scales"] & np.uint8(15), blocks["scales"] >> np.uint8(4)
    d, dmin = (blocks[f].astype(np.float32)[:, None] for f in ("d", "dmin"))
    return d * scales.astype(np.float32), dmin * mins.astype(np.float32)


Q2_K = register(BlockType(GGMLType.Q2_K, DTYPE, quantize_blocks, dequantize_blocks))
