"""The nodes after a convolution and a scan have the same bits in its launch and in their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pyggml as ops
from pyggml.backend.cpu import kernels as kernels  # registers the lowerings
from pyggml.backend.cpu.compile.program import PhaseTable, compile_program
from pyggml.backend.cpu.compile.work import WorkStore
from pyggml.backend.cpu.run.pool import get_pool
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.quants import quantize
from pyggml.tensor import Tensor

Array = npt.NDArray[Any]
RUNS = {  # first token, number, slot before; slots after; tokens
    "one token": ([(0, 1, 1)], [1], 1),
    "from zeros": ([(0, 3, -1)], [-1, -1, 0], 3),
    "several and padding": ([(0, 2, -1), (2, 1, 1), (3, 37, 2)], [-1, 0, 1, *[-1] * 36, 3, -1], 41),
}
THREADS = ((1, True), (2, True), (5, True), (3, False))


def launched(*nodes: Tensor, n_threads: int, fusion: bool) -> PhaseTable:
    """The program of the nodes, which has run."""
    graph = CGraph()
    for node in nodes:
        graph.build_forward_expand(node)
    pool = get_pool()
    program = compile_program(graph, n_threads, pool.error_slot, WorkStore(), fusion=fusion)
    pool.run(program)
    return program


def values(rng: Any, ctx: Context, *ne: int, low: float = -1, high: float = 1) -> Tensor:
    return ctx.from_numpy(rng.uniform(low, high, ne[::-1]).astype(np.float32))


def matrix(rng: Any, ctx: Context, *ne: int) -> Tensor:
    """Q8_0 weights, whose product reads the quantized form of its source."""
    weights = ctx.new_tensor(GGMLType.Q8_0, ne)
    data = quantize(rng.uniform(-1, 1, ne[::-1]).astype(np.float32), GGMLType.Q8_0)
    assert weights.buffer is not None
    weights.buffer.set_tensor(weights, data.reshape(-1).view(np.uint8))
    return weights


def places(ctx: Context, name: str) -> tuple[list[Tensor], int]:
    runs, slots, n_tokens = RUNS[name]
    sources = [ctx.from_numpy(np.array(x, np.int32)) for x in (runs, slots)]
    return sources, n_tokens


def convolved(name: str, bias: bool, n_threads: int, fusion: bool) -> tuple[bytes, int]:
    """Bytes of SiLU of a convolution, of its product with a matrix and of the states; launches."""
    ctx, rng, n = Context(), np.random.default_rng(0), 96 * 32
    (runs, slots), T = places(ctx, name)
    states = values(rng, ctx, n, 3, 4)
    wide = values(rng, ctx, n + 64, T)
    x = ops.view_2d(ctx, wide, n, T, wide.nb[1], 128)
    y = ops.ssm_conv_slots(ctx, x, values(rng, ctx, 4, n), states, runs, slots)
    if bias:
        y = ops.add(ctx, y, values(rng, ctx, n))
    y = ops.silu(ctx, y)
    product = ops.mul_mat(ctx, matrix(rng, ctx, n, 16), y)
    program = launched(product, y, n_threads=n_threads, fusion=fusion)
    found = b"".join(t.numpy().tobytes() for t in (y, product, states))
    return found, len(program.launches)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", RUNS)
def test_silu_of_a_convolution(name: str, bias: bool) -> None:
    want, n_alone = convolved(name, bias, 1, fusion=False)
    for n_threads, fusion in THREADS:
        got, n = convolved(name, bias, n_threads, fusion)
        assert got == want
        assert n == n_alone - (1 + bias if fusion else 0)  # both quantize on the way


def scanned(name: str, n_threads: int, fusion: bool, heads: int = 6) -> tuple[bytes, int]:
    """Bytes of a gated scan, of its product with a matrix and of the states; launches."""
    ctx, rng, n, dim = Context(), np.random.default_rng(0), 40, 32
    (runs, slots), T = places(ctx, name)
    states = values(rng, ctx, n, dim, heads, 4)
    wide = values(rng, ctx, 2 * dim * heads + 3, T)
    x, z = (
        ops.view_3d(ctx, wide, (dim, heads, T), (4 * dim, wide.nb[1]), 4 * dim * heads * part)
        for part in (0, 1)
    )
    dt = values(rng, ctx, heads, T, low=-4, high=2)
    A = values(rng, ctx, 1, heads, low=-2, high=-0.1)
    B, C = (values(rng, ctx, n, 2, T) for _ in range(2))
    y = ops.ssm_scan_slots(ctx, states, x, dt, A, B, C, runs, slots)
    y = ops.add(ctx, y, ops.mul(ctx, x, values(rng, ctx, 1, heads)))
    y = ops.mul(ctx, y, ops.silu(ctx, z))
    flat = ops.reshape_2d(ctx, y, dim * heads, T)
    product = ops.mul_mat(ctx, matrix(rng, ctx, dim * heads, 16), flat)
    program = launched(product, y, n_threads=n_threads, fusion=fusion)
    found = b"".join(t.numpy().tobytes() for t in (y, product, states))
    return found, len(program.launches)


@pytest.mark.parametrize("name", RUNS)
def test_the_gate_of_a_scan(name: str) -> None:
    want, n_alone = scanned(name, 1, fusion=False)
    for n_threads, fusion in THREADS:
        got, n = scanned(name, n_threads, fusion)
        assert got == want
        assert n == n_alone - (5 if fusion else 0)  # one quantizes


def test_a_scan_that_something_else_reads_stays_alone() -> None:
    ctx, rng = Context(), np.random.default_rng(0)
    (runs, slots), T = places(ctx, "one token")
    x, z = (values(rng, ctx, 32, 2, T) for _ in range(2))
    B, C = (values(rng, ctx, 8, 1, T) for _ in range(2))
    dt, A, D = (values(rng, ctx, 2, T), values(rng, ctx, 1, 2), values(rng, ctx, 1, 2))
    y = ops.ssm_scan_slots(ctx, values(rng, ctx, 8, 32, 2, 4), x, dt, A, B, C, runs, slots)
    gated = ops.mul(ctx, ops.add(ctx, y, ops.mul(ctx, x, D)), ops.silu(ctx, z))
    program = launched(gated, ops.silu(ctx, y), n_threads=1, fusion=True)
    assert len(program.launches) == 6
