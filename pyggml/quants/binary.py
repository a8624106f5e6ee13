"""Q1_0: 128 signs with one scale.

    x[j] = d if q[j] else -d

Source: ggml, ``quantize_row_q1_0_ref``: d is the mean magnitude; zeros are positive.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Bits, BlockType, Bytes, Floats, half, register


def encode_signs(f: BlockType, x: Floats, weights: Floats | None) -> Bytes:
    """float32 [n, 128] -> blocks [n]."""
    total = np.add.accumulate(np.abs(x), axis=1)[:, -1]  # front to back
    return f.blocks(total / np.float32(f.columns), codes=x >= 0)


Q1_0 = register(
    BlockType(
        GGMLType.Q1_0, (Bits(1, 16, (128,), (1,)),), half(0), values=(-1, 1), encode=encode_signs
    )
)
