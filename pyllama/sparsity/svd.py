"""Two thin matrices in place of a large one: a truncated SVD by a randomised range finder.

    first, second = low_rank(w, 512, seed=0)       # second @ first is nearly w

NumPy only; the same seed gives the same matrices on the same machine. For 11008 x 4096 and rank
512 about 300 GFLOP, seconds a layer.
Source: Halko, Martinsson and Tropp 2011, "Finding structure with randomness", algorithms 4.4, 5.1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
_MORE = 16  # columns more than the rank: what the range finder may miss
_ROUNDS = 2  # of power iteration, which sharpens a spectrum that falls slowly


def low_rank(w: Floats, rank: int, seed: int) -> tuple[Floats, Floats]:
    """The best approximation of ``w`` of a rank, nearly, as two factors of equal weight.

    Shape:
        NumPy order, w [m, n] -> [rank, n], [m, rank]
    """
    m, n = w.shape
    width = min(rank + _MORE, m, n)
    if width == min(m, n):
        u, s, vt = np.linalg.svd(w, full_matrices=False)
    else:
        y = w @ np.random.default_rng(seed).standard_normal((n, width), np.float32)
        for _ in range(_ROUNDS):
            q, _ = np.linalg.qr(y)
            q, _ = np.linalg.qr(w.T @ q)
            y = w @ q
        q, _ = np.linalg.qr(y)  # [m, width]
        u, s, vt = np.linalg.svd(q.T @ w, full_matrices=False)
        u = q @ u
    root = np.sqrt(s[:rank])  # to each its half: both fit float16
    return root[:, None] * vt[:rank], u[:, :rank] * root
