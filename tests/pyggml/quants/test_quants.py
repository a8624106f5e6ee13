"""Block formats against gguf's own quantizers, a scalar twin of ggml's, and ggml's error limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf import quants as gguf_quants
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pyggml import permute
from pyggml.buffer import HOST
from pyggml.context import Context
from pyggml.dtype import GGMLType, row_size
from pyggml.errors import QuantizeError, ShapeError, TypeMismatch
from pyggml.quants import BLOCK_TYPES, dequantize, from_float, quantize, to_float

from ...tiers import some

F32, F16, BF16 = GGMLType.F32, GGMLType.F16, GGMLType.BF16
Q8_0, Q4_0, Q5_0 = GGMLType.Q8_0, GGMLType.Q4_0, GGMLType.Q5_0
Q8_K = GGMLType.Q8_K
WRITTEN = [t for t, b in BLOCK_TYPES.items() if b.encode is not None]
GGUF_WRITES = [GGMLType[n] for n in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")]
K_QUANTS = [GGMLType[n] for n in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")]
TYPES = [*WRITTEN, F16, BF16, F32]
GGUF_READS = [t for t in TYPES if t.name not in ("Q8_K", "Q1_0", "Q2_0")]
ERROR_LIMITS = {  # of ggml's test-quantize-fns
    **dict.fromkeys(("TQ1_0", "TQ2_0", "Q2_0"), 0.01),
    "Q1_0": 0.025,
    "Q2_K": 0.0075,
    "Q3_K": 0.004,
    "NVFP4": 0.003,
}
by_name = pytest.mark.parametrize("type", TYPES, ids=lambda t: t.name)
blocks_only = pytest.mark.parametrize("type", WRITTEN, ids=lambda t: t.name)


def samples() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((16, 256))
    data = {
        "normal": x,
        "heavy": x**5,
        "positive": np.abs(x) + 1,
        "tiny": x * 1e-6,
        "tinier": x * 1e-20,
        "denormal": x * 1e-40,
        "at the edge of denormal": x * 1e-38,
        "zero": np.zeros_like(x),
        "negative zero": -np.abs(x * 0),
        "zeros of both signs": x * 0,
        "outlier": np.where(rng.random(x.shape) < 0.004, 300 * x, x),
        "holes": np.where(rng.random(x.shape) < 0.7, 0, x),
        "scales of all sizes": x * 10.0 ** rng.integers(-12, 3, (16, 16)).repeat(16, axis=1),
        "constant": x * 0 - 1.25,
        "ties": np.round(x * 4) / 8,
        "large": x * 1000,
    }
    return {k: v.astype(np.float32) for k, v in data.items()}


def importances() -> list[Any]:
    """Importance of columns: equal (None), graded, some, none, extreme."""
    rng = np.random.default_rng(4)
    some, wild = rng.random(256) < 0.3, 10.0 ** rng.integers(-20, 10, 256)
    rows = (rng.random(256) ** 4, some, np.zeros(256), wild)
    return [None, *(r.astype(np.float32) for r in rows)]


def theirs(type: GGMLType) -> GGMLQuantizationType:
    return GGMLQuantizationType(int(type))


@pytest.mark.parametrize("type", [*GGUF_WRITES, F16, BF16, F32], ids=lambda t: t.name)
@pytest.mark.parametrize("name", ["normal", "heavy", "positive", "tiny", "constant", "ties"])
def test_bytes_are_gguf_bytes(type: GGMLType, name: str) -> None:
    x = samples()[name]
    got = quantize(x, type)
    assert got.dtype == np.uint8 and got.shape == (16, row_size(type, 256))
    want = gguf_quants.quantize(x, theirs(type)).view(np.uint8).reshape(got.shape)
    # gguf rounds x * id + 8.5 once, in float64; ggml's C code rounds twice
    if type in (Q4_0, Q5_0):
        codes = [dequantize(b, type) / max(np.abs(x).max(), 1e-30) for b in (got, want)]
        assert np.mean(got != want) < 1e-3
        assert np.abs(codes[0] - codes[1]).max() < 0.15  # one code
    else:
        assert np.array_equal(got, want)


@pytest.mark.parametrize("type", [*GGUF_WRITES, *K_QUANTS], ids=lambda t: t.name)
@pytest.mark.parametrize("name", some(samples(), 4))
def test_bytes_and_values_equal_ggml(type: GGMLType, name: str) -> None:
    """Compared with ggml's own C functions, where their package is installed."""
    libgguf = pytest.importorskip("libgguf")
    x = samples()[name]
    for imatrix in importances():
        got = quantize(x, type, imatrix)
        want = np.asarray(libgguf.quantize_rows(x, theirs(type), imatrix))
        assert np.array_equal(got, want.view(np.uint8).reshape(got.shape))
    values = np.asarray(libgguf.dequantize_rows(got, theirs(type), 256))
    assert dequantize(got, type).tobytes() == values.tobytes()  # the signs of zeros too


@pytest.mark.parametrize("type", GGUF_READS, ids=lambda t: t.name)
def test_values_are_gguf_values(type: GGMLType) -> None:
    for name, x in samples().items():
        if type is GGMLType.NVFP4 and name == "large":
            continue  # refused
        data = quantize(x, type)
        want = gguf_quants.dequantize(data, theirs(type)) if type != F32 else x
        assert np.array_equal(dequantize(data, type), want)


def q4_0_scalar(block: Any) -> bytes:
    """ggml's loop, one float32 operation at a time."""
    f = np.float32
    top = f(0)
    for v in block:
        top = v if abs(v) > abs(top) else top
    d = f(top / f(-8))
    inverse = f(f(1) / d) if d else f(0)
    q = [min(15, int(f(f(v * inverse) + f(8.5)))) for v in block]
    return np.float16(d).tobytes() + bytes(q[j] | q[j + 16] << 4 for j in range(16))


def test_q4_0_is_ggml_scalar_loop() -> None:
    for name, x in samples().items():
        if "denormal" in name:
            continue  # the code of an infinite inverse is undefined in C
        want = b"".join(q4_0_scalar(b) for b in x[:8].reshape(-1, 32))
        assert quantize(x[:8], Q4_0).tobytes() == want


def test_q4_0_takes_the_first_of_equal_magnitudes() -> None:
    x = np.zeros(32, np.float32)
    x[3], x[7] = -4, 4
    assert dequantize(quantize(x, Q4_0), Q4_0)[[3, 7]].tolist() == [-4, 3.5]


def test_q8_k_is_ggml_scalar_loop() -> None:
    f = np.float32
    dtype = np.dtype([("d", "<f4"), ("qs", "i1", 256), ("bsums", "<i2", 16)])
    for x in samples().values():
        for row, block in zip(x[:4], quantize(x[:4], Q8_K).view(dtype)[:, 0], strict=True):
            top = row[np.abs(row).argmax()]
            with np.errstate(over="ignore"):
                inverse = f(-127) / top if top else f(0)
            if np.isinf(inverse):
                continue  # undefined in C
            codes = np.minimum(127, np.rint(row * inverse))
            assert block["d"] == (f(1) / inverse if top else 0)
            assert np.array_equal(block["qs"], codes)
            assert np.array_equal(block["bsums"], codes.reshape(16, 16).sum(axis=1))
            values = dequantize(np.frombuffer(block.tobytes(), np.uint8), Q8_K)
            assert np.array_equal(values, block["d"] * codes.astype(f))


def test_q8_0_rounds_half_away_from_zero() -> None:
    x = np.zeros(32, np.float32)
    x[:5] = [127, 0.5, -0.5, 1.5, 2.5]
    codes = quantize(x, Q8_0)[2:].view(np.int8)
    assert codes[:5].tolist() == [127, 1, -1, 2, 3]


@blocks_only
def test_round_trip_error_is_within_ggml_limit(type: GGMLType) -> None:
    for offset in (0, 1):  # the data and the limit of ggml's test-quantize-fns
        x = (0.1 + 2 * np.cos(np.arange(4096) + offset)).astype(np.float32)
        error = np.sqrt(np.sum((dequantize(quantize(x, type), type) - x) ** 2)) / 4096
        assert error < ERROR_LIMITS.get(type.name, 0.002)


@given(arrays(np.float32, 256, elements=st.floats(-60000, 60000, width=32)), st.sampled_from(TYPES))
@example(np.full(256, 2.0**-126, np.float32), GGMLType.Q8_0)
@example(np.eye(1, 256, dtype=np.float32)[0] * np.float32(2.0**-126), GGMLType.Q5_1)
def test_any_finite_row_survives(x: Any, type: GGMLType) -> None:
    x = x / 32 if type is GGMLType.NVFP4 else x  # whose scales end at 448
    y = dequantize(quantize(x, type), type)
    assert np.isfinite(y).all()
    reach = np.abs(x).max() - min(0, x.min()) + max(0, x.max())
    if type in GGUF_WRITES:
        assert np.all(np.abs(y - x) <= reach * 0.14 + 1e-3)


@blocks_only
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(type: GGMLType, bad: float) -> None:
    x = np.ones((3, 256), np.float32)
    x[1, 40] = bad
    with pytest.raises(QuantizeError, match=r"1 of 768 values.*\[1, 40\].*" + type.name):
        quantize(x, type)


@pytest.mark.parametrize("type", [*GGUF_WRITES, *K_QUANTS], ids=lambda t: t.name)
def test_a_scale_beyond_float16_is_refused(type: GGMLType) -> None:
    with pytest.raises(QuantizeError, match="float16"):
        quantize(np.linspace(-1e10, 1e10, 256), type)


def test_half_formats_keep_nan_and_infinity() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 1e30], np.float32)
    assert np.array_equal(dequantize(quantize(x, BF16), BF16)[:3], x[:3], equal_nan=True)
    half = dequantize(quantize(x, F16), F16)
    assert np.array_equal(half, [np.inf, -np.inf, np.nan, np.inf], equal_nan=True)


def test_wrong_sizes_and_types_are_refused() -> None:
    with pytest.raises(ShapeError, match="33"):
        quantize(np.zeros(33), Q4_0)
    with pytest.raises(ShapeError, match="33"):
        dequantize(np.zeros(33, np.uint8), Q4_0)
    with pytest.raises(TypeMismatch, match="IQ1_S"):
        quantize(np.zeros(256), GGMLType.IQ1_S)
    with pytest.raises(TypeMismatch, match="Q8_1"):
        dequantize(np.zeros(36, np.uint8), GGMLType.Q8_1)
    with pytest.raises(TypeMismatch, match=r"Q4_Q.*Q4_K"):
        quantize(np.zeros(256), "Q4_Q")
    with pytest.raises(TypeMismatch, match=r"uint8, got float16.*view"):
        dequantize(np.ones(32, np.float16), "F16")


def test_blocks_may_be_a_files_bytes() -> None:
    blocks = quantize(np.arange(64, dtype=np.float32), Q4_0)
    np.testing.assert_array_equal(dequantize(blocks.tobytes(), Q4_0), dequantize(blocks, Q4_0))


@by_name
def test_tensors_of_any_strides(type: GGMLType) -> None:
    x = np.random.default_rng(1).standard_normal((2, 5, 3, 256)).astype(np.float32)
    ctx = Context()
    t = ctx.new_tensor(type, (256, 3, 5, 2))
    from_float(t, x)
    want = dequantize(quantize(x, type), type)
    assert np.array_equal(to_float(t), want)
    p = permute(ctx, t, 0, 2, 1, 3)
    assert np.array_equal(to_float(p), want.transpose(0, 2, 1, 3))
    from_float(p, x.transpose(0, 2, 1, 3)[::-1])
    assert np.array_equal(to_float(t), want[::-1])


def test_from_float_checks_the_shape() -> None:
    t = Context().new_tensor(F32, (4, 2))
    with pytest.raises(ShapeError, match=r"\(4, 2\)"):
        from_float(t, np.zeros((4, 2), np.float32))


def test_a_quantized_view_with_gaps_is_written_in_host_memory_only() -> None:
    class Far:
        buft, base, size, mem = HOST, 64, 0, None

    ctx = Context(no_alloc=True)
    t = ctx.new_tensor(Q8_0, (64, 3, 5))
    t.buffer, t.data = Far(), 64  # type: ignore[assignment]
    p = permute(ctx, t, 0, 2, 1, 3)
    with pytest.raises(TypeMismatch, match="host memory"):
        from_float(p, np.zeros(p.ne[::-1], np.float32))
