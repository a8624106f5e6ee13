"""Q3_K: 256 codes of 3 bits, centred at 4; each 16 have a scale of 6 bits, centred at 32.

    x[j] = d * (scale[j // 16] - 32) * (q[j] - 4)

Source: ggml, ``quantize_row_q3_K_ref``, ``quantize_row_q3_K_impl`` and ``dequantize_row_q3_K``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, register
from .exact import F, Ints, first_largest, nearest_int, ordered_sum
from .superblock import SUPERBLOCK, Bytes, pack_pairs, recode, spread_weights, unpack_pairs
from .symmetric import fit_by_turns, fit_symmetric

DTYPE = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
GROUP, GROUPS, TOP, SCALE_TOP = 16, 16, 4, 32


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 256] -> blocks [n]."""
    blocks = np.empty(len(x), DTYPE)
    groups = x.reshape(-1, GROUP)  # [n * 16, 16]
    if weights is None:
        scale, codes = fit_by_turns(groups, TOP)
        d, scales = _by_largest(scale.reshape(-1, GROUPS))
    else:
        w = spread_weights(x, weights, 2).reshape(-1, GROUP)
        scale, codes = fit_symmetric(groups, w, TOP)
        group_weights = ordered_sum(w).reshape(-1, GROUPS)
        d, scales = fit_symmetric(scale.reshape(-1, GROUPS), group_weights, SCALE_TOP)
    blocks["d"], blocks["scales"] = d, _pack_scales(scales)
    shape = (-1, GROUPS, GROUP)
    codes = recode(x.reshape(shape), _steps(blocks), None, (-TOP, TOP - 1), codes.reshape(shape))
    blocks["qs"] = pack_pairs(codes & 3)
    # Byte l has the third bits of elements l, l + 32, ...
    third = (codes >> 2).astype(np.uint8).reshape(-1, 8, 32)
    blocks["hmask"] = np.packbits(third, axis=1, bitorder="little")[:, 0]
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    third = np.unpackbits(blocks["hmask"][:, None], axis=1, bitorder="little")  # [n, 8, 32]
    q = unpack_pairs(blocks["qs"]) | third.reshape(-1, SUPERBLOCK) << np.uint8(2)
    centred = q.reshape(-1, GROUPS, GROUP).astype(np.float32) - F(TOP)
    out: Floats = _steps(blocks)[..., None] * centred
    return out.reshape(-1, SUPERBLOCK)


def _by_largest(x: Floats) -> tuple[Floats, Ints]:
    """A step that makes the value of largest magnitude -32, and the codes from 0 to 63."""
    largest = first_largest(x)[:, None]
    inverse = F(-SCALE_TOP) / largest
    codes = nearest_int(inverse * x).astype(np.int8).astype(np.int32)
    codes = np.clip(codes, -SCALE_TOP, SCALE_TOP - 1) + np.int32(SCALE_TOP)
    d = np.where(largest != 0, F(1) / inverse, F(0))
    return d[:, 0], np.where(largest != 0, codes, 0)


def _pack_scales(scales: Ints) -> Bytes:
    """Scales [n, 16] of 6 bits in 12 bytes: 8 bytes of low nibbles, 4 of the pairs above them."""
    s = scales.astype(np.uint8)
    nibbles = s[:, :8] & np.uint8(15) | s[:, 8:] << np.uint8(4)
    tops = s.reshape(-1, 4, 4) >> np.uint8(4)  # [n, 4, 4]: of element 4 i + j at [i, j]
    pairs = tops[:, 0] | tops[:, 1] << 2 | tops[:, 2] << 4 | tops[:, 3] << 6
    return np.concatenate([nibbles, pairs], axis=1)


def _steps(blocks: Blocks) -> Floats:
    """The scale of each sub-block, [n, 16], from what is stored."""
    nibbles, pairs = blocks["scales"][:, :8], blocks["scales"][:, 8:]
    low = np.concatenate([nibbles & np.uint8(15), nibbles >> np.uint8(4)], axis=1)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    tops = (pairs[:, None] >> shifts & np.uint8(3)).reshape(-1, GROUPS)  # [n, 16]
    scales = (low | tops << np.uint8(4)).astype(np.float32) - F(SCALE_TOP)
    out: Floats = blocks["d"].astype(np.float32)[:, None] * scales
    return out


Q3_K = register(BlockType(GGMLType.Q3_K, DTYPE, quantize_blocks, dequantize_blocks))
