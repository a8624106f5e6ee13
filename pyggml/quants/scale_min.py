"""Scales and minima of six bits for each 32 of 256 values: what Q4_K and Q5_K share.

Source: ggml, ``quantize_row_q4_K_ref``, ``quantize_row_q4_K_impl`` and their Q5_K siblings.
"""

from __future__ import annotations

import numpy as np

from .affine import AffineSearch, fit_affine
from .block import Blocks, Floats
from .exact import F, Ints, nearest_int, ordered_sum
from .superblock import SUPERBLOCK, Bytes, pack_scales, recode, spread_weights, unpack_scales
from .symmetric import fit_positive

GROUP, GROUPS, TOP = 32, 8, 63


def encode(
    x: Floats, weights: Floats | None, plain: AffineSearch, weighted: AffineSearch, blocks: Blocks
) -> Ints:
    """Fill ``d``, ``dmin`` and ``scales`` of ``blocks`` [n] and choose the codes [n, 256]."""
    groups = x.reshape(-1, GROUP)  # [n * 8, 32]
    if weights is None:
        mean = np.sqrt(ordered_sum(groups * groups) / F(GROUP))
        w, search = mean[:, None] + np.abs(groups), plain
    else:
        w, search = spread_weights(x, weights, 2).reshape(-1, GROUP), weighted
    scale, low, codes = fit_affine(groups, w, search)
    scale, low = scale.reshape(-1, GROUPS), -low.reshape(-1, GROUPS)
    if weights is None:
        (d, scales), (dmin, mins) = _by_largest(scale), _by_largest(low)
    else:
        group_weights = ordered_sum(w).reshape(-1, GROUPS)
        (d, scales), (dmin, mins) = (fit_positive(s, group_weights, TOP) for s in (scale, low))
        if search.top == 31:  # ggml caps Q5_K's and not Q4_K's
            scales, mins = np.minimum(scales, TOP), np.minimum(mins, TOP)
    blocks["d"], blocks["dmin"], blocks["scales"] = d, dmin, pack_scales(scales, mins)
    d, low = _steps(blocks)
    shape = (-1, GROUPS, GROUP)
    return recode(x.reshape(shape), d, low, (0, search.top), codes.reshape(shape)).reshape(
        -1, SUPERBLOCK
    )


def decode(blocks: Blocks, codes: Bytes) -> Floats:
    """The values of codes [n, 256]."""
    d, low = _steps(blocks)
    q = codes.reshape(-1, GROUPS, GROUP).astype(np.float32)
    out: Floats = d[..., None] * q - low[..., None]
    return out.reshape(-1, SUPERBLOCK)


def _by_largest(x: Floats) -> tuple[Floats, Ints]:
    """A step that makes the largest of eight values 63, and their codes."""
    high = np.maximum(x.max(axis=1), F(0))
    inverse = np.where(high > 0, F(TOP) / high, F(0))
    return high / F(TOP), np.minimum(nearest_int(inverse[:, None] * x) & 255, TOP)


def _steps(blocks: Blocks) -> tuple[Floats, Floats]:
    """Scale and minimum of each sub-block, [n, 8] both, from what is stored."""
    scales, mins = unpack_scales(blocks["scales"])
    d, dmin = (blocks[f].astype(np.float32)[:, None] for f in ("d", "dmin"))
    return d * scales.astype(np.float32), dmin * mins.astype(np.float32)
