"""Rows through the jitted codecs: the bits of the NumPy formats, any columns, no write outside."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyggml.backend.cpu.codec import DECODED, ENCODED, row_encoder
from pyggml.backend.cpu.codec.encoders import encoders
from pyggml.backend.cpu.codec.rows import row_decoder
from pyggml.compiler.jit import CpuKernel
from pyggml.dtype import GGMLType, row_size
from pyggml.quants import BLOCK_TYPES, reference_quantize
from tests.tiers import some

Array = npt.NDArray[Any]
N = 512
WEIGHTED = [kind for kind in ENCODED if encoders(kind)[1] is not None]


def named(kinds: Any, n: int | None = None) -> Any:
    """All kinds, of which ``n`` run by default."""
    kinds = [GGMLType(k) for k in kinds]
    return pytest.mark.parametrize("kind", some(kinds, n or len(kinds)), ids=lambda t: t.name)


def call(made: CpuKernel, *args: int | Array) -> None:
    addresses = [a if isinstance(a, int) else int(a.ctypes.data) for a in args]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(made.address)(*addresses)


def samples() -> Array:
    """float32 [rows, N]: values that are easy or hard to encode."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((8, N))
    powers = np.exp2(rng.integers(-99, 12, (8, N))) * (1 - rng.integers(0, 60, (8, N)) * 2.0**-24)
    outliers = np.where(rng.random((8, N)) < 0.02, 100 * x, 1e-3 * x)
    steps = x * np.exp(3 * rng.standard_normal((8, N // 32))).repeat(32, axis=1)
    parts = [x, x**5, 1 + np.abs(x), 1e-6 * x, 1e-15 * x, 1e-40 * x, 3e-38 * x, 1e4 * x]
    parts += [0 * x, -np.zeros_like(x), 0 * x - 1.25, np.round(4 * x) / 8, outliers, steps]
    parts += [powers, np.round(x)]
    return np.concatenate(parts).astype(np.float32)


@named(DECODED, 8)
def test_decoding(kind: GGMLType) -> None:
    n_bytes = row_size(kind, N)
    rows = np.random.default_rng(int(kind)).integers(0, 256, (50, n_bytes), np.uint8)
    with np.errstate(all="ignore"):
        values = BLOCK_TYPES[kind].dequantize_blocks(rows.reshape(-1, kind.type_size))
    want = values.reshape(50, N)
    for first, n in ((0, N), (0, 5), (70, 300), (N - 1, 1)):
        for row, wanted in zip(rows, want, strict=True):
            out = np.full(n + 2, 7, np.float32)
            call(row_decoder(int(kind)), row, int(out.ctypes.data) + 4, n, first)
            assert out[0] == 7 and out[-1] == 7
            np.testing.assert_array_equal(out[1:-1], wanted[first : first + n])
            # bits, for the sign of zero; NaN may have any
            bits = [v.view(np.uint32)[~np.isnan(v)] for v in (out[1:-1], wanted[first : first + n])]
            assert np.array_equal(*bits)


@named(ENCODED, 7)
def test_encoding(kind: GGMLType) -> None:
    x = samples() / (32 if kind is GGMLType.NVFP4 else 1)  # whose scales end at 448
    x = x.astype(np.float32)
    out = np.full((len(x), row_size(kind, N) + 4), 7, np.uint8)
    for row, place in zip(x, out, strict=True):
        call(row_encoder(int(kind)), row, place, N, 0)
    assert (out[:, -4:] == 7).all()
    assert np.array_equal(out[:, :-4], reference_quantize(x, kind))


@named(WEIGHTED, 2)
def test_encoding_with_importance_weights(kind: GGMLType) -> None:
    x, made = samples(), row_encoder(int(kind), weighted=True)
    rng = np.random.default_rng(0)
    for weights in (rng.random(N) ** 4, rng.random(N) < 0.5):
        weights = weights.astype(np.float32)
        want = BLOCK_TYPES[kind].weigh(x, weights).astype(np.float32)
        out = np.empty((len(x), row_size(kind, N)), np.uint8)
        for row, place, weight in zip(x, out, np.ascontiguousarray(want), strict=True):
            call(made, row, place, N, weight)
        assert np.array_equal(out, reference_quantize(x, kind, weights))
