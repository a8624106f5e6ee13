"""Quantized activations against a NumPy twin, bit for bit."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyggml.backend.cpu.abi import record
from pyggml.backend.cpu.kernels.quantize import quantize_q8, quantize_row
from pyggml.backend.cpu.layout import Q8_BLOCK
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.jit import isa, kernel
from pyggml.tensor import Tensor

Array = npt.NDArray[Any]
BLOCK = np.dtype([("d", np.float32), ("s", np.float32), ("q", np.int8, 32)])


@kernel
def fused(x, out, n, unused):  # type: ignore[no-untyped-def]
    quantize_row(x, out, n)


def twin(x: Array) -> Array:
    """The definition, in float32."""
    rows = x.reshape(-1, 32)
    out = np.zeros(len(rows), BLOCK)
    top = np.abs(rows).max(axis=1)
    out["d"] = top / np.float32(127)
    inverse = np.divide(np.float32(127), top, out=np.zeros_like(top), where=top > 0)
    out["q"] = np.rint(rows * inverse[:, None]).astype(np.int8)
    out["s"] = out["d"] * out["q"].sum(axis=1, dtype=np.int32).astype(np.float32)
    return out


def quantize(x: Tensor, n_chunks: int) -> Array:
    out = np.zeros(x.nelements // 32, BLOCK)
    words = record(0, [out.ctypes.data], x, (x,))
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(quantize_q8.address)
    for chunk in range(n_chunks):
        call(words.ctypes.data, chunk, n_chunks, 0)
    return out


def tensor(values: Array) -> Tensor:
    return Context().from_numpy(np.ascontiguousarray(values, np.float32))


@pytest.mark.parametrize("n_chunks", [1, 2, 3, 7, 64])
def test_equals_the_definition_for_any_chunks(n_chunks: int) -> None:
    x = np.random.default_rng(0).normal(size=(5, 96)).astype(np.float32)
    x[0, :32] = 0
    x[1] = np.linspace(-127, 127, 96) / 2  # many ties
    assert BLOCK.itemsize == Q8_BLOCK
    assert quantize(tensor(x), n_chunks).tobytes() == twin(x).tobytes()


def test_strided_rows() -> None:
    ctx = Context()
    x = ctx.from_numpy(np.random.default_rng(0).normal(size=(3, 4, 64)).astype(np.float32))
    view = ctx.new_view(x, (64, 3, 4, 1), (x.nb[0], x.nb[2], x.nb[1], x.nb[3]))
    assert quantize(view, 2).tobytes() == twin(view.numpy().copy()).tobytes()


def test_fused_has_the_same_bits() -> None:
    x = np.random.default_rng(1).standard_cauchy(576 * 9).astype(np.float32)
    out = np.zeros(x.size // 32, BLOCK)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(fused.address)
    call(x.ctypes.data, out.ctypes.data, x.size, 0)
    assert out.tobytes() == quantize(tensor(x), 2).tobytes() == twin(x).tobytes()


def test_nan_and_inf_travel_and_stay_in_their_block() -> None:
    x = np.ones((1, 128), np.float32)
    x[0, 3], x[0, 40], x[0, 70] = np.nan, np.inf, 1e-40
    x[0, 96:] = 1e-42
    got = quantize(tensor(x), 1)
    assert np.isnan(got["d"][0]) and np.isinf(got["d"][1])
    assert got[2].tobytes() == twin(x[0, 64:96])[0].tobytes()
    assert not got["q"][3].any() and not got["s"][3]


def test_it_is_vectorised() -> None:
    text = quantize_q8.assembly()
    assert {"generic": "mulps", "avx2": "ymm", "avx512vnni": "zmm"}[isa()] in text
    assert GGMLType.Q8_1.block_size == 32
