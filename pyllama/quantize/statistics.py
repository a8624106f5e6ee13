"""How evenly importance is spread over the columns of each matrix.

    for row in matrix_statistics(read_importance("imatrix.gguf")):
        row.name, row.sum, row.evenness

Source: llama.cpp, ``imatrix.cpp``, ``compute_vector_statistics``, of files without means.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from .importance import Entry, Importance


@dataclass(frozen=True)
class MatrixStatistics:
    """Of the mean squares of a matrix's inputs, over the experts that were used.

    Attributes:
        evenness: entropy of their distribution, of the most it could be: 1 where all are equal.
    """

    name: str
    sum: float
    mean: float
    deviation: float
    skewness: float
    kurtosis: float
    evenness: float


def matrix_statistics(importance: Importance) -> list[MatrixStatistics]:
    """Of all matrices that saw anything, by layer and name."""

    def key(name: str) -> tuple[int, str]:
        layer = re.match(r"blk\.(\d+)\.", name)
        return int(layer[1]) if layer else 1 << 30, name

    entries = importance.entries
    return [
        _statistics(name, entries[name])
        for name in sorted(entries, key=key)
        if (entries[name].counts > 0).any()
    ]


def _statistics(name: str, entry: Entry) -> MatrixStatistics:
    values = entry.means()[entry.counts > 0].astype(np.float64).reshape(-1)
    total, apart = float(values.sum()), values - values.mean()
    deviation = math.sqrt(float(np.mean(apart**2)))
    third = fourth = 0.0
    if deviation > 1e-10:
        third = float(np.mean(apart**3)) / deviation**3
        fourth = float(np.mean(apart**4)) / deviation**4 - 3
    shares = values / total if total else values
    shares = shares[shares > 1e-10]
    entropy = float(-(shares * np.log2(shares)).sum())
    most = math.log2(values.size) if values.size > 1 else 1.0
    mean = float(values.mean())
    return MatrixStatistics(name, total, mean, deviation, third, fourth, entropy / most)
