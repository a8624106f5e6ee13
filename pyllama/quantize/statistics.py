"""Statistics of an importance matrix: the distribution over the columns of each matrix.

    for row in matrix_statistics(read_importance("imatrix.gguf")):
        row.name, row.sum, row.evenness

Source: llama.cpp, ``imatrix.cpp``, ``compute_vector_statistics``, of files without means.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from .importance import Importance, ImportanceEntry


@dataclass(frozen=True)
class MatrixStatistics:
    """Statistics of the mean squared inputs of a matrix, over the experts that were used.

    Attributes:
        evenness: entropy of the distribution divided by its maximum; 1 if all are equal.
    """

    name: str
    sum: float
    mean: float
    deviation: float
    skewness: float
    kurtosis: float
    evenness: float


def matrix_statistics(importance: Importance) -> list[MatrixStatistics]:
    """Return the statistics of all matrices with counts, by layer and name."""

    def key(name: str) -> tuple[int, str]:
        layer = re.match(r"blk\.(\d+)\.", name)
        return int(layer[1]) if layer else 1 << 30, name

    entries = importance.entries
    return [
        _statistics(name, entries[name])
        for name in sorted(entries, key=key)
        if (entries[name].counts > 0).any()
    ]


def _statistics(name: str, entry: ImportanceEntry) -> MatrixStatistics:
    values = entry.means()[entry.counts > 0].astype(np.float64).reshape(-1)
    total, centered = float(values.sum()), values - values.mean()
    deviation = math.sqrt(float(np.mean(centered**2)))
    skewness = kurtosis = 0.0
    if deviation > 1e-10:
        skewness = float(np.mean(centered**3)) / deviation**3
        kurtosis = float(np.mean(centered**4)) / deviation**4 - 3
    shares = values / total if total else values
    shares = shares[shares > 1e-10]
    entropy = float(-(shares * np.log2(shares)).sum())
    max_entropy = math.log2(values.size) if values.size > 1 else 1.0
    mean, evenness = float(values.mean()), entropy / max_entropy
    return MatrixStatistics(name, total, mean, deviation, skewness, kurtosis, evenness)
