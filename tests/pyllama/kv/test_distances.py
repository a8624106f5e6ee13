"""Buckets of distances against those of transformers, ``T5Attention._relative_position_bucket``."""

from __future__ import annotations

import pytest

from pyllama.kv.distances import FARTHEST, relative_buckets

DISTANCES = (-128, -127, -64, -32, -31, -16, -8, -7, -1, 0, 1, 8, 15, 16, 90, 91, 128)


@pytest.mark.parametrize(
    ("n", "causal", "buckets"),
    [
        (32, False, [15, 15, 14, 12, 11, 10, 8, 7, 1, 0, 17, 24, 25, 26, 30, 31, 31]),
        (32, True, [31, 31, 26, 21, 21, 16, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
        (12, False, [5, 5, 5, 4, 4, 4, 3, 3, 1, 0, 7, 9, 10, 10, 11, 11, 11]),
    ],
)
def test_buckets_of_transformers(n: int, causal: bool, buckets: list[int]) -> None:
    found = relative_buckets(n, causal)
    assert found[[FARTHEST + d for d in DISTANCES]].tolist() == buckets


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 256, 512, 1 << 30])
def test_absurd_numbers_of_buckets(n: int, causal: bool) -> None:
    found = relative_buckets(n, causal)
    assert found.min() >= 0 and found.max() <= max(n - 1, 0)
