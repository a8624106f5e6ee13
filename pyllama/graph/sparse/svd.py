"""Low-rank approximation of a matrix: a truncated SVD by a randomised range finder.

    first, second = low_rank(w, 512, seed=0)       # second @ first is nearly w

NumPy only; the same seed gives the same matrices on the same machine. 11008 x 4096 and rank 512
take 200 GFLOP.
Source: Halko, Martinsson and Tropp 2011, "Finding structure with randomness", algorithms 4.4, 5.1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
_OVERSAMPLING = 16  # additional columns for the range finder


def low_rank(w: Floats, rank: int, seed: int) -> tuple[Floats, Floats]:
    """Return nearly the best approximation of ``w`` of a rank, as two factors of equal norm.

    Shape:
        NumPy order, w [m, n] -> [rank, n], [m, rank]
    """
    m, n = w.shape
    rank = min(rank, m, n)
    width = min(rank + _OVERSAMPLING, m, n)
    x = np.random.default_rng(seed).standard_normal((n, width), np.float32)
    x, _ = np.linalg.qr(w.T @ (w @ x))  # one power iteration, for slowly decaying spectra
    q, _ = np.linalg.qr(w @ x)  # [m, width], nearly the range of w
    b = q.T @ w  # [width, n]
    squares, u = np.linalg.eigh((b @ b.T).astype(np.float64))  # much cheaper than an SVD of b
    squares, u = squares[::-1][:rank], u[:, ::-1][:, :rank].astype(np.float32)
    # the square root of the singular values goes to each factor, so that both fit F16
    root = np.maximum(squares, 1e-30).astype(np.float32) ** 0.25
    return (u.T @ b) / root[:, None], (q @ u) * root
