"""Arrays large enough for a kernel: the reference's bytes and values for any threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.errors import QuantizeError, ShapeError
from pyggml.quants import (
    dequantize,
    quantize,
    reference_dequantize,
    reference_quantize,
)
from pyggml.quants.arrays import array_codec

WEIGHTED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
N = 512


def values() -> Any:
    """float32 [n_rows, N]: values that are easy or hard to encode; more than 65536."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((10, N))
    sizes = 10.0 ** rng.integers(-12, 3, (10, N // 16)).repeat(16, axis=1)
    parts = [x, x**5, 1 + np.abs(x), 1e-6 * x, 1e-20 * x, 1e-38 * x, 1e-40 * x, 1e3 * x, 0 * x]
    parts += [-np.zeros_like(x), 0 * x - 1.25, np.round(4 * x) / 8, sizes * x]
    parts += [np.where(rng.random(x.shape) < 0.01, 300 * x, x), np.where(x < 0.5, 0, x)]
    return np.concatenate(parts).astype(np.float32)


def importance() -> Any:
    rng = np.random.default_rng(4)
    return (rng.random(N) ** 4 * (rng.random(N) < 0.9)).astype(np.float32)


@pytest.mark.parametrize("name", WEIGHTED)
def test_bytes_with_importance_equal_the_reference(name: str) -> None:
    """See test_codec_rows for other formats, and for rows without importance."""
    x, imatrix, type = values()[::4].copy(), importance(), GGMLType[name]
    codec = array_codec()
    assert codec is not None
    got = codec.encode(x, type, imatrix, None)
    assert np.array_equal(got, reference_quantize(x, type, imatrix))


def test_large_arrays_equal_the_reference() -> None:
    x, type = values(), GGMLType.Q4_K
    assert x.size > 1 << 16
    blocks = quantize(x, type)
    assert np.array_equal(blocks, reference_quantize(x, type))
    assert dequantize(blocks, type).tobytes() == reference_dequantize(blocks, type).tobytes()


@pytest.mark.parametrize("imatrix", [None, importance()], ids=["plain", "weighted"])
def test_threads_and_shapes_change_nothing(imatrix: Any) -> None:
    x = values()
    want = quantize(x, "Q4_0", imatrix, n_threads=1)
    assert np.array_equal(quantize(x, "q4_0", imatrix, n_threads=3), want)
    deep = quantize(x.reshape(5, -1, N), GGMLType.Q4_0, imatrix)
    assert deep.shape == (5, len(x) // 5, want.shape[1])
    assert np.array_equal(deep.reshape(want.shape), want)
    y = dequantize(want, "Q4_0", n_threads=1)
    assert y.shape == x.shape
    assert dequantize(want.reshape(-1), "Q4_0", n_threads=3).tobytes() == y.tobytes()


def test_a_row_of_any_number_of_blocks() -> None:
    x = values().reshape(-1)[: 32 * 2049]
    assert np.array_equal(quantize(x, "Q8_0"), reference_quantize(x, GGMLType.Q8_0))
    assert quantize(np.zeros((0, 256)), "Q4_K").shape == (0, 144)


@pytest.mark.parametrize("imatrix", [None, importance()], ids=["plain", "weighted"])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_nan_and_infinity_are_found(imatrix: Any, bad: float) -> None:
    x = values()
    x[70, 3] = bad
    with pytest.raises(QuantizeError, match=rf"1 of {x.size} values.*\[70, 3\].*Q4_0"):
        quantize(x, "Q4_0", imatrix)


def test_a_scale_beyond_float16_is_refused() -> None:
    x = values()
    x[70, 3] = 1e9
    with pytest.raises(QuantizeError, match=r"1e\+09.*Q4_0.*float16"):
        quantize(x, "Q4_0")


def test_wrong_importance_is_refused() -> None:
    x, imatrix = values()[:2], importance()
    with pytest.raises(ShapeError, match=r"\(511,\).*\(512,\)"):
        quantize(x, "Q4_K", imatrix[1:])
    for bad in (np.nan, np.inf, -1):
        imatrix[5] = bad
        with pytest.raises(QuantizeError, match="column 5"):
            quantize(x, "Q4_K", imatrix)


def test_importance_moves_the_error_to_other_columns() -> None:
    x = np.random.default_rng(0).standard_normal((16, N)).astype(np.float32)
    chosen = np.arange(N) % 2 == 0
    for type in ("Q4_0", "Q4_1", "Q2_K", "Q3_K", "Q4_K", "Q6_K"):
        plain, weighted = (
            (dequantize(quantize(x, type, w), type) - x) ** 2
            for w in (None, np.where(chosen, 1, 1e-3))
        )
        assert weighted[:, chosen].sum() < 0.97 * plain[:, chosen].sum(), type
