"""What TQ1_0 and TQ2_0 share: codes 0, 1, 2 for -d, 0, d, where d is the largest magnitude."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .block import Floats, inverse

Codes = npt.NDArray[np.uint8]


def ternary(x: Floats) -> tuple[Floats, Codes]:
    """float32 [n, 256] -> scales [n], codes [n, 256]; halves go away from zero."""
    d = np.abs(x).max(axis=1)
    scaled = x * inverse(d)[:, None]
    away = (np.abs(scaled) >= np.float32(0.5)).astype(np.float32)
    return d, (np.copysign(away, scaled) + np.float32(1)).astype(np.uint8)
