"""Top-n-sigma: removes tokens by the standard deviation of the logits.

TopNSigma(1.0).apply(candidates)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from pyggml.compiler.jit import inline_strict, jitted
from pyggml.compiler.pointers import f32_ptr
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.sampler import ChainSetup, Sampler


@inline_strict
def top_n_sigma(logits: Any, n: Any, n_sigma: Any) -> Any:
    """Set logits to -inf that are below ``max - n_sigma * std``; all sums in llama.cpp's order."""
    top, total, count = logits[0], np.float32(0), 0
    for i in range(n):
        if logits[i] != -np.inf:
            top = max(top, logits[i])
            total += logits[i]
            count += 1
    if count == 0:
        return
    mean, squares = np.float32(total / np.float32(count)), np.float32(0)
    for i in range(n):
        if logits[i] != -np.inf:
            difference = np.float64(np.float32(logits[i] - mean))
            squares = np.float32(squares + difference * difference)
    deviation = np.sqrt(np.float32(squares / np.float32(count)))
    limit = np.float32(top - np.float32(n_sigma) * deviation)
    for i in range(n):
        if logits[i] < limit:
            logits[i] = -np.inf


class TopNSigma(Sampler):
    """Sets logits to -inf that are more than n standard deviations below the largest.

    Source: https://arxiv.org/abs/2411.07641; llama.cpp, `llama_sampler_top_n_sigma_apply`.
    """

    label = "top-n-sigma"
    keeps_argmax = True
    keeps_all = True
    is_stateless = True

    def __init__(self, n: float) -> None:
        self._n = np.float32(n)
        self.fused_args = float(self._n), 0, 0

    @classmethod
    def create(cls, setup: ChainSetup) -> TopNSigma | None:
        n = setup.params.top_n_sigma
        return cls(n) if n > 0 else None

    def apply(self, candidates: Candidates) -> None:
        if len(candidates) > 1:
            _apply(candidates.writable().ctypes.data, len(candidates), self._n)


@jitted(types.void(types.int64, types.int64, types.float64), nogil=False)
def _apply(logits: Any, n: Any, n_sigma: Any) -> None:
    top_n_sigma(f32_ptr(logits), n, n_sigma)
