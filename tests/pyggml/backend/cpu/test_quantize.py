"""Quantized activations against a NumPy twin, bit for bit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyggml.backend.cpu.abi import record
from pyggml.backend.cpu.kernels.quantize import add_quantize, quantize_q8, quantize_row
from pyggml.backend.cpu.layout import Q8_BLOCK
from pyggml.backend.cpu.lowering import Lowering
from pyggml.backend.cpu.pool import get_pool
from pyggml.backend.cpu.program import Program
from pyggml.backend.cpu.work import WorkMemory, WorkStore
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.jit import isa, kernel
from pyggml.ops import mul, rms_norm, swiglu_split
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
    d = top / np.float32(127)
    inverse = np.divide(np.float32(127), top, out=np.zeros_like(top), where=top > 0)
    out["q"] = np.rint(rows * inverse[:, None]).astype(np.int8)
    out["d"] = d.astype(np.float16)
    out["s"] = (d * out["q"].sum(axis=1, dtype=np.int32).astype(np.float32)).astype(np.float16)
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


def by_program(build: Callable[[Context], Tensor], n_threads: int) -> tuple[Array, Array]:
    """The result of a node, and its blocks as the kernel that computes it writes them."""
    graph = CGraph()
    node = build(Context())
    graph.build_forward_expand(node)
    low = Lowering(graph, n_threads, WorkMemory(WorkStore()))
    low.run()
    n_launches = len(low.launches)
    out = low.quantized(node, add_quantize)
    assert len(low.launches) == n_launches == 1  # no launch of its own
    get_pool().run(Program(low, get_pool().error_slot), n_threads)
    blocks = np.zeros(node.nelements // 32, BLOCK)
    ctypes.memmove(blocks.ctypes.data, out.address, blocks.nbytes)
    return node.numpy().copy(), blocks


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1536), (3, 64), (5, 2, 9, 96)])
def test_norm_and_glu_quantize_what_they_write(n_threads: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, z = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    w = rng.normal(size=shape[-1]).astype(np.float32)

    def norm(ctx: Context) -> Tensor:
        return mul(ctx, rms_norm(ctx, ctx.from_numpy(x), 1e-5), ctx.from_numpy(w))

    def swiglu(ctx: Context) -> Tensor:
        return swiglu_split(ctx, ctx.from_numpy(x), ctx.from_numpy(z))

    for build in (norm, swiglu):
        y, blocks = by_program(build, n_threads)
        assert blocks.tobytes() == twin(y).tobytes()


def test_it_is_vectorised() -> None:
    text = quantize_q8.assembly()
    assert {"generic": "mulps", "avx2": "ymm", "avx512vnni": "zmm"}[isa()] in text
