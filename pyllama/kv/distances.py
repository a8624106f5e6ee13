"""The buckets of distances between tokens, each with a bias of attention that is learned (T5).

    buckets = relative_buckets(32, causal=False)   # int32[257]; buckets[128]: of the token itself

Near distances have a bucket each, farther ones share them in logarithmic steps. Pure functions.
Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer"; transformers, ``T5Attention._relative_position_bucket``.
"""

from __future__ import annotations

import math

import numpy as np

from .table import Ints

FARTHEST = 128  # all farther tokens are in the same buckets; llama.cpp has no other value either


def relative_buckets(n_buckets: int, causal: bool) -> Ints:
    """The bucket of each distance from -``FARTHEST`` to ``FARTHEST``: key's less query's position.

    Args:
        n_buckets: of all distances together.
        causal: keys are not after queries, so all buckets are those of distances up to 0.
    """
    distance = np.arange(-FARTHEST, FARTHEST + 1)
    n = n_buckets if causal else n_buckets // 2
    after = 0 if causal else np.where(distance > 0, n, 0)
    distance = np.maximum(-distance, 0) if causal else np.abs(distance)
    n_exact = min(max(n // 2, 1), FARTHEST - 1)  # distances with a bucket each
    steps = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(n_exact))
    steps = steps / np.float32(math.log(FARTHEST / n_exact)) * np.float32(n - n_exact)
    far = np.minimum(n_exact + steps.astype(np.int64), n - 1)
    bucket = after + np.where(distance < n_exact, distance, far)
    found: Ints = np.clip(bucket, 0, max(n_buckets - 1, 0)).astype(np.int32)
    return found
