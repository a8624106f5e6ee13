"""Weights in MXFP4: 32 values of 4 bits and a power of two as their scale.

    add_mxfp4(parts, "experts.down_proj", "experts.down_proj_blocks", "experts.down_proj_scales")
    parts.decoded["experts.down_proj"].blocks.read()   # GGUF's blocks, the same bits elsewhere

In checkpoints, byte j of a block has the values 2j (lower half) and 2j + 1; in GGUF, the values j
and j + 16. Codes and scales are the same.
Source: gpt-oss, ``MoE``'s weights; llama.cpp, ``repack_mxfp4_blocks``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from pyggml.dtype import GGMLType
from pyggml.quants import dequantize

from ...errors import ModelError
from ...inputs.budget import shown
from ..files.decoded import Blocks, DecodedTensor, PackedBlocks
from ..files.stored import Floats, StoredTensor
from .parts import Parts, check_shape

_N = GGMLType.MXFP4.block_size
_NBYTES = GGMLType.MXFP4.type_size
_CHUNK = 1 << 16  # blocks converted at a time


def add_mxfp4(
    parts: Parts, name: str, codes_name: str, scales_name: str, transposed: bool = False
) -> None:
    """Add the tensor ``name``.

    Args:
        transposed: whether its last two dimensions are exchanged, as gpt-oss' experts have them.

    Shape:
        NumPy order, codes [..., n_rows, n_blocks, 16] or [..., n_rows, 16 * n_blocks],
        scales [..., n_rows, n_blocks]

    Raises:
        ModelError: a tensor is missing, or has another type or shape.
    """
    codes, scales = parts.take(codes_name, "U8", "I8"), parts.take(scales_name, "U8", "F8_E8M0")
    rows = scales.shape
    if len(rows) < 2:
        raise ModelError(
            f"{scales.path}: tensor {shown(scales_name)} has the shape {list(rows)}, must be "
            "[..., n_rows, n_blocks]"
        )
    if len(codes.shape) == len(rows):
        check_shape(codes_name, codes, (*rows[:-1], rows[-1] * _N // 2))
    else:
        check_shape(codes_name, codes, (*rows, _N // 2))
    shape = (*rows[:-1], rows[-1] * _N)
    if transposed:
        shape = (*shape[:-2], shape[-1], shape[-2])
    blocks = PackedBlocks(rows, transposed, partial(_blocks, codes, scales))
    parts.add(name, DecodedTensor(shape, (codes, scales), partial(_floats, blocks), blocks))


def _blocks(codes: StoredTensor, scales: StoredTensor) -> Blocks:
    """Return GGUF's blocks in the shape of the scales."""
    out = np.empty((scales.size, _NBYTES), np.uint8)
    out[:, 0] = scales.raw().reshape(-1)
    pairs = codes.raw().view(np.uint8).reshape(-1, _N // 2)
    for i in range(0, len(out), _CHUNK):
        part = pairs[i : i + _CHUNK]
        values = np.stack((part & 15, part >> 4), axis=-1).reshape(len(part), 2, _N // 2)
        out[i : i + _CHUNK, 1:] = values[:, 0] | values[:, 1] << 4
    return out.view(f"V{_NBYTES}").reshape(scales.shape)


def _floats(blocks: PackedBlocks) -> Floats:
    flat = blocks.load().reshape(-1, 1).view(np.uint8)  # [n_blocks, 17]
    out = np.empty((len(flat), _N), np.float32)
    for i in range(0, len(flat), _CHUNK):
        out[i : i + _CHUNK] = dequantize(flat[i : i + _CHUNK], GGMLType.MXFP4)
    x = out.reshape(*blocks.shape[:-1], blocks.shape[-1] * _N)
    return x.swapaxes(-1, -2) if blocks.transposed else x
