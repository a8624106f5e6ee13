"""Quantized activations against a NumPy twin, bit for bit."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyggml import mul, rms_norm, swiglu_split
from pyggml.backend.cpu.abi import record
from pyggml.backend.cpu.compile.lowering import CpuLowering
from pyggml.backend.cpu.compile.program import PhaseTable
from pyggml.backend.cpu.compile.work import WorkMemory, WorkStore
from pyggml.backend.cpu.kernels.quantize import (
    Converted,
    add_quantize,
    quantize_kernel,
    quantize_row,
)
from pyggml.backend.cpu.run.pool import get_pool
from pyggml.backend.cpu.weights.layout import ACTIVATION_BYTES
from pyggml.cgraph import CGraph
from pyggml.compiler.jit import isa, kernel
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor

Array = npt.NDArray[Any]
BLOCK = np.dtype([("eight", np.int32), ("d", np.float32), ("q", np.int8, 32), ("s", np.float32)])
SUPER_BLOCK = np.dtype(
    {
        "names": ["d", "sums_32", "sums_16", "starts", "q"],
        "formats": [np.float32, (np.int16, 8), (np.int16, 16), (np.int16, (16, 2)), (np.int8, 256)],
        "offsets": [0, 16, 32, 64, 128],
    }
)
F32 = int(GGMLType.F32)


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
    total = out["q"].sum(axis=1, dtype=np.int32).astype(np.float32)
    out["s"] = (d * total).astype(np.float16)
    out["eight"] = -8 * total
    return out


def super_twin(x: Array) -> Array:
    """The definition of blocks of 256, in float32."""
    rows = x.reshape(-1, 256)
    out = np.zeros(len(rows), SUPER_BLOCK)
    inverse = np.float32(127) / np.abs(rows).max(axis=1)
    out["d"] = np.float32(1) / inverse
    out["q"] = np.rint(rows * inverse[:, None]).astype(np.int8)
    q = out["q"].astype(np.int32)
    mixed = [0, 2, 1, 3]  # the order of the sums in each group of four
    out["sums_32"] = q.reshape(-1, 2, 4, 32).sum(-1)[..., mixed].reshape(-1, 8)
    out["sums_16"] = q.reshape(-1, 4, 4, 16).sum(-1)[..., mixed].reshape(-1, 16)
    out["starts"] = -32 * q.reshape(-1, 16, 4, 2, 2).sum(axis=(2, 4))
    return out


def quantize(x: Tensor, n_chunks: int, block: np.dtype[Any] = BLOCK) -> Array:
    columns = 32 if block is BLOCK else 256
    out = np.zeros(x.nelements // columns, block)
    words = record(0, Converted(out.ctypes.data), x, (x,))
    address = quantize_kernel(F32, columns).address
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(address)
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
    assert [b.itemsize for b in (BLOCK, SUPER_BLOCK)] == list(ACTIVATION_BYTES.values())
    assert quantize(tensor(x), n_chunks).tobytes() == twin(x).tobytes()
    x = np.random.default_rng(0).normal(size=(5, 768)).astype(np.float32)
    x[1] = np.linspace(-127, 127, 768) / 2
    x[2, :256], x[3, 256:512] = 3, -0.1
    got, want = quantize(tensor(x), n_chunks, SUPER_BLOCK), super_twin(x)
    for field in SUPER_BLOCK.names or ():
        np.testing.assert_array_equal(got[field], want[field], field)


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


def test_nan_and_inf_propagate_within_their_block() -> None:
    x = np.ones((1, 128), np.float32)
    x[0, 3], x[0, 40], x[0, 70] = np.nan, np.inf, 1e-40
    x[0, 96:] = 1e-42
    got = quantize(tensor(x), 1)
    assert np.isnan(got["d"][0]) and np.isinf(got["d"][1])
    assert got[2].tobytes() == twin(x[0, 64:96])[0].tobytes()
    assert not got["q"][3].any() and not got["s"][3]
    x = np.ones((5, 256), np.float32)
    x[0, 3], x[1, 40], x[2], x[3] = np.nan, -np.inf, 1e-42, 0
    got = quantize(tensor(x), 1, SUPER_BLOCK)
    assert np.isnan(got["d"][0]) and np.isinf(got["d"][1])
    assert not got[2:4].tobytes().strip(bytes(1))
    assert got[4].tobytes() == super_twin(x[4])[0].tobytes()


def by_program(build: Callable[[Context], Tensor], n_threads: int) -> tuple[Array, Array]:
    """The result of a node, and the blocks that its own kernel quantizes."""
    graph = CGraph()
    node = build(Context())
    graph.build_forward_expand(node)
    lowering = CpuLowering(graph, n_threads, WorkMemory(WorkStore()))
    lowering.run()
    n_launches = len(lowering.launches)
    out = lowering.quantized(node, 32, add_quantize)
    assert len(lowering.launches) == n_launches == 1  # no launch of its own
    get_pool().run(PhaseTable(lowering, get_pool().error_slot))
    blocks = np.zeros(node.nelements // 32, BLOCK)
    ctypes.memmove(blocks.ctypes.data, out.address, blocks.nbytes)
    return node.numpy().copy(), blocks


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1536), (3, 64), (5, 2, 9, 96)])
def test_norm_and_glu_quantize_their_results(n_threads: int, shape: tuple[int, ...]) -> None:
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


def test_loops_are_vectorised() -> None:
    for columns in ACTIVATION_BYTES:
        text = quantize_kernel(F32, columns).assembly()
        wide = {"avx512amx": "zmm", "avx512vnni": "zmm", "avxvnni": "ymm", "avx2": "ymm"}
        assert re.search(wide.get(isa(), r"mulps|\.4s"), text)
