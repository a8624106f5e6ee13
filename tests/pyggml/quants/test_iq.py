"""IQ, FP4, binary and ternary formats: ggml's own bytes and values."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest

from pyggml.dtype import GGMLType, row_size
from pyggml.errors import QuantizeError, TypeMismatch
from pyggml.quants import dequantize, quantize

from ...tiers import some

IQ4 = (GGMLType.IQ4_NL, GGMLType.IQ4_XS)
FP4 = (GGMLType.MXFP4, GGMLType.NVFP4)
WRITTEN = (*IQ4, *FP4, GGMLType.TQ1_0, GGMLType.TQ2_0, GGMLType.Q1_0, GGMLType.Q2_0)
Q2_0 = GGMLType.Q2_0
READ = [GGMLType[n] for n in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M")]
N = 512
written = pytest.mark.parametrize("type", WRITTEN, ids=lambda t: t.name)


def samples() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((32, N))
    data = {
        "normal": x,
        "heavy": x**5,
        "positive": np.abs(x) + 1,
        "tiny": x * 1e-15,
        "denormal": x * 1e-40,
        "zero": np.zeros_like(x),
        "negative zero": -np.zeros_like(x),
        "constant": x * 0 - 1.25,
        "outlier": np.where(rng.random(x.shape) < 0.01, 100 * x, 1e-3 * x),
        "ties": np.round(x * 4) / 8,
        "large": x * 1e4,
        "below powers of two": np.nextafter(np.exp2(rng.integers(-99, 12, x.shape), dtype="f"), 0),
    }
    return {k: v.astype(np.float32) for k, v in data.items()}


def importance() -> list[Any]:
    rng = np.random.default_rng(4)
    return [None, rng.random(N).astype(np.float32) ** 4, (rng.random(N) < 0.5).astype(np.float32)]


def too_large(type: GGMLType, x: Any) -> bool:
    """Whether ggml stores wrong numbers instead, and we refuse."""
    return type is GGMLType.NVFP4 and bool(np.abs(x).max() > 448 * 6)


@pytest.mark.parametrize("type", [t for t in WRITTEN if t is not Q2_0], ids=lambda t: t.name)
@pytest.mark.parametrize("name", some(samples(), 3))
def test_bytes_are_ggml_bytes(type: GGMLType, name: str) -> None:
    libgguf = pytest.importorskip("libgguf")
    x = samples()[name]
    if too_large(type, x):
        pytest.skip("refused")
    for imatrix in importance():
        got = quantize(x, type, imatrix)
        assert got.shape == (32, row_size(type, N))
        want = np.asarray(libgguf.quantize_rows(x, int(type), imatrix))
        assert np.array_equal(got, want.view(np.uint8).reshape(got.shape))


def q2_0_scalar(block: Any) -> bytes:
    """ggml's loop, one float32 operation at a time."""
    f = np.float32
    d = f(np.abs(block).max())
    inverse = f(f(1) / d) if d > 0 else f(0)
    codes = bytearray(16)
    for j, v in enumerate(block):
        size = float(np.abs(f(v * inverse)))
        q = int(size + 0.5) * (-1 if v < 0 else 1) + 1
        codes[j // 4] |= min(max(q, 0), 3) << 2 * (j % 4)
    return np.float16(d).tobytes() + bytes(codes)


def test_q2_0_is_ggml_scalar_loop() -> None:
    """As libgguf 0.2 has it not; compared with ggml's function once, with equal bytes."""
    for name, x in samples().items():
        if name != "denormal":  # the code of an infinite inverse is undefined in C
            want = b"".join(q2_0_scalar(b) for b in x[:8].reshape(-1, 64))
            assert quantize(x[:8], Q2_0).tobytes() == want, name
    blocks = np.random.default_rng(5).integers(0, 256, (400, 18), np.uint8)
    blocks[:, 1] &= 0x3B  # no NaN
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    codes = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    want = (codes.reshape(400, 64).astype(np.int32) - 1) * d
    np.testing.assert_array_equal(dequantize(blocks, Q2_0), want)


@pytest.mark.parametrize("type", IQ4, ids=lambda t: t.name)
def test_importance_matters(type: GGMLType) -> None:
    """The error of columns of weight 0 grows, that of the others shrinks."""
    x, chosen = samples()["normal"], importance()[2]
    plain, weighted = (
        (dequantize(quantize(x, type, w), type) - x) ** 2 for w in (None, chosen + 1e-3)
    )
    assert weighted[:, chosen == 1].sum() < 0.95 * plain[:, chosen == 1].sum()


@pytest.mark.parametrize(
    "type", [t for t in (*WRITTEN, *READ) if t is not Q2_0], ids=lambda t: t.name
)
def test_values_are_gguf_and_ggml_values(type: GGMLType) -> None:
    """Random bytes: every code, scale and sign."""
    blocks = np.random.default_rng(5).integers(0, 256, (4000, type.type_size), np.uint8)
    got = dequantize(blocks, type)
    if type is not GGMLType.Q1_0:  # which gguf has not
        with np.errstate(all="ignore"):
            want = gguf.dequantize(blocks, gguf.GGMLQuantizationType(int(type)))
        np.testing.assert_array_equal(got, want)
    libgguf = pytest.importorskip("libgguf")
    values = np.asarray(libgguf.dequantize_rows(blocks, int(type), type.block_size))
    real = ~np.isnan(got)
    assert np.array_equal(real, ~np.isnan(values))
    assert got[real].tobytes() == values.reshape(got.shape)[real].tobytes()


@written
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(type: GGMLType, bad: float) -> None:
    x = np.ones((3, N), np.float32)
    x[1, 40] = bad
    with pytest.raises(QuantizeError, match=rf"1 of {3 * N} values.*\[1, 40\].*" + type.name):
        quantize(x, type)


@pytest.mark.parametrize("type", [t for t in WRITTEN if t is not GGMLType.MXFP4])
@pytest.mark.parametrize("large", [1e10, 1e30])
def test_a_scale_beyond_float16_is_refused(type: GGMLType, large: float) -> None:
    with pytest.raises(QuantizeError, match=r"float16|E4M3"):
        quantize(np.linspace(-large, large, N), type)


def test_mxfp4_takes_the_largest_numbers() -> None:
    x = np.linspace(-3e38, 3e38, N, dtype=np.float32)
    assert np.abs(dequantize(quantize(x, "MXFP4"), "MXFP4") - x).max() < 0.2 * 3e38


@pytest.mark.parametrize("type", READ, ids=lambda t: t.name)
def test_read_only_formats_cannot_be_written(type: GGMLType) -> None:
    with pytest.raises(TypeMismatch, match=type.name):
        quantize(np.zeros(256), type)


@written
def test_error_of_a_round_trip(type: GGMLType) -> None:
    """Limits of the error for each number of bits, relative to the mean square."""
    x = samples()["normal"]
    error = np.mean((dequantize(quantize(x, type), type) - x) ** 2) / np.mean(x**2)
    limit = 0.006 if type in IQ4 else 0.02 if type in FP4 else 0.9
    assert error < limit
