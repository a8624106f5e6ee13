"""Q6_K: 256 codes of 6 bits, centred at 32; each 16 have a scale of 8 bits.

    x[j] = d * scale[j // 16] * (q[j] - 32)

Source: ggml, ``quantize_row_q6_K_ref``, ``quantize_row_q6_K_impl`` and ``dequantize_row_q6_K``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, register
from .exact import F, Ints, first_largest, nearest_int
from .superblock import SUPERBLOCK, Bytes, pack_pairs, recode, unpack_pairs
from .symmetric import TINY, fit_symmetric

DTYPE = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])
GROUP, GROUPS, TOP = 16, 16, 32


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 256] -> blocks [n]."""
    blocks = np.empty(len(x), DTYPE)
    groups = x.reshape(-1, GROUP)  # [n * 16, 16]
    w = groups * groups if weights is None else weights.reshape(-1, GROUP)
    scale, codes = fit_symmetric(groups, w, TOP)
    scale = scale.reshape(-1, GROUPS)
    largest = first_largest(scale)[:, None]
    inverse = F(-128) / largest
    blocks["d"] = (F(1) / inverse)[:, 0]
    blocks["scales"] = np.minimum(nearest_int(inverse * scale), 127).astype(np.int8)
    shape = (-1, GROUPS, GROUP)
    codes = recode(x.reshape(shape), _steps(blocks), None, (-TOP, TOP - 1), codes.reshape(shape))
    blocks["ql"], blocks["qh"] = _pack_low(codes & 15), pack_pairs(codes >> 4)
    blocks[np.abs(largest[:, 0]) < TINY] = np.zeros((), DTYPE)
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    q = _unpack_low(blocks["ql"]) | unpack_pairs(blocks["qh"]) << np.uint8(4)
    centred = q.reshape(-1, GROUPS, GROUP).astype(np.float32) - F(TOP)
    out: Floats = _steps(blocks)[..., None] * centred
    return out.reshape(-1, SUPERBLOCK)


def _steps(blocks: Blocks) -> Floats:
    """The scale of each sub-block, [n, 16], from what is stored."""
    out: Floats = blocks["d"].astype(np.float32)[:, None] * blocks["scales"].astype(np.float32)
    return out


def _pack_low(codes: Ints) -> Bytes:
    """Nibbles [n, 256] -> [n, 128]: of each 128, elements l and l + 64 in byte l."""
    q = codes.astype(np.uint8).reshape(-1, 2, 2, 64)
    packed: Bytes = q[:, :, 0] | q[:, :, 1] << np.uint8(4)
    return packed.reshape(-1, 128)


def _unpack_low(packed: Bytes) -> Bytes:
    q = packed.reshape(-1, 2, 1, 64)
    return np.concatenate([q & np.uint8(15), q >> np.uint8(4)], axis=2).reshape(-1, SUPERBLOCK)


Q6_K = register(BlockType(GGMLType.Q6_K, DTYPE, quantize_blocks, dequantize_blocks))
