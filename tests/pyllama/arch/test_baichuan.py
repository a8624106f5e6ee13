"""Baichuan 2's normalized output matrix, which its vocabulary of 125,696 tokens tells apart."""

from __future__ import annotations

import numpy as np

from pyllama.arch.baichuan import CONVERT


def test_rows_of_the_output_are_normalized() -> None:
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    (first,) = CONVERT.change("output.weight", x, {"vocab_size": 64000}).values()
    assert np.array_equal(first, x)
    (second,) = CONVERT.change("output.weight", x, {"vocab_size": 125696}).values()
    assert np.allclose(np.linalg.norm(second, axis=1), 1) and second.dtype == np.float32
