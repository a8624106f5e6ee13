"""Recurrent ops on the CUDA backend: what their cases do not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pyggml as ops
from pyggml.alloc import alloc_ctx_tensors
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import ComputeError
from pyggml.sched import to_numpy
from pyggml.tensor import Tensor

pytest.importorskip("numba_cuda")
pytest.importorskip("greenlet")

from pyggml.backend.cuda.backend import CudaBackend

from .simulator import simulator_image
from .twin import TwinDriver

F32, I32 = GGMLType.F32, GGMLType.I32
N_SLOTS, N_TOKENS = 5, 4
Ne = tuple[int, ...]
OPS: dict[str, tuple[list[Ne], Callable[..., Tensor]]] = {  # sizes of sources before the runs
    "TOKEN_SHIFT": ([(4, N_TOKENS), (4, N_SLOTS)], ops.token_shift),
    "GATED_LINEAR_ATTN": (
        [*[(4, 1, N_TOKENS)] * 4, (16, N_SLOTS)],
        lambda *sources: ops.gated_linear_attn_slots(*sources, scale=1.0),
    ),
    "GATED_DELTA_NET": (
        [*[(4, 1, N_TOKENS)] * 3, *[(1, 1, N_TOKENS)] * 2, (4, 4, 1, N_SLOTS)],
        ops.gated_delta_net_slots,
    ),
}
RUNS, SLOTS = [[0, 3, -1], [-1, 0, N_SLOTS]], [-1, -1, 2, -1]  # the second run is empty


def backend(**options: Any) -> CudaBackend:
    return CudaBackend(TwinDriver(order="reverse"), "cuda0", compile=simulator_image, **options)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(
    ("runs", "slots"),
    [
        ([[0, 3, N_SLOTS], [0, 0, 0]], SLOTS),
        ([[2, 3, -1], [0, 0, 0]], SLOTS),
        ([[-1, 3, -1], [0, 0, 0]], SLOTS),
        (RUNS, [-1, -1, N_SLOTS, -1]),
    ],
)
def test_a_run_or_slot_out_of_range_names_the_node(name: str, runs: Any, slots: Any) -> None:
    """An access out of bounds would be a fault of the twin, whose message is another one."""
    cuda, (sizes, build) = backend(), OPS[name]
    ctx = Context(no_alloc=True)
    sources = [ctx.new_tensor(F32, ne) for ne in sizes]
    places = ctx.new_tensor_2d(I32, 3, 2), ctx.new_tensor_1d(I32, N_TOKENS)
    y = build(ctx, *sources, *places).set_name("mixed")
    alloc_ctx_tensors(ctx, cuda.buffer_type())
    for source in sources:
        source.set(np.full(source.ne[::-1], 0.5, np.float32))
    graph = CGraph()
    graph.build_forward_expand(y)
    program = cuda.compile(graph)
    for is_legal, given in ((False, (runs, slots)), (True, (RUNS, SLOTS))):
        for tensor, numbers in zip(places, given, strict=True):
            tensor.set(np.array(numbers, np.int32))
        program.enqueue()
        if not is_legal:
            with pytest.raises(ComputeError, match=f"'mixed' = {name}: an index is out of range"):
                cuda.queue.synchronize()
    cuda.queue.synchronize()
    last = to_numpy(y).reshape(N_TOKENS, -1)
    assert last[2].all() and not last[3].any()


@pytest.mark.parametrize("biased", [False, True])
def test_a_convolution_with_bias_and_silu_is_one_launch(biased: bool) -> None:
    """A run of more tokens than a thread has, whose state replaces the one before it."""
    n, width, n_tokens = 9, 4, 37
    results, launches = [], []
    for fusion in (False, True):
        cuda, rng = backend(fusion=fusion), np.random.default_rng(0)
        ctx = Context(no_alloc=True)
        x, c = ctx.new_tensor_2d(F32, n, n_tokens), ctx.new_tensor_2d(F32, width, n)
        states, bias = ctx.new_tensor_3d(F32, n, width - 1, 3), ctx.new_tensor_1d(F32, n)
        runs, slots = ctx.new_tensor_2d(I32, 3, 1), ctx.new_tensor_1d(I32, n_tokens)
        y = ops.ssm_conv_slots(ctx, x, c, states, runs, slots)
        y = ops.silu(ctx, ops.add(ctx, y, bias) if biased else y)
        alloc_ctx_tensors(ctx, cuda.buffer_type())
        for tensor in (x, c, states, bias):
            tensor.set(rng.standard_normal(tensor.ne[::-1]).astype(np.float32))
        before, rows = to_numpy(states)[0, 1].copy(), to_numpy(x)[0, 0].copy()
        weight, added = to_numpy(c)[0, 0].copy(), to_numpy(bias)[0, 0, 0] * biased
        runs.set(np.array([[0, n_tokens, 1]], np.int32))
        slots.set(np.array([-1] * (n_tokens - 1) + [1], np.int32))
        graph = CGraph()
        graph.build_forward_expand(y)
        cuda.graph_compute(graph)
        windows = np.concatenate([before, rows])
        want = sum(windows[k : k + n_tokens] * weight[:, k] for k in range(width)) + added
        np.testing.assert_allclose(to_numpy(y)[0, 0], want / (1 + np.exp(-want)), atol=1e-5)
        np.testing.assert_array_equal(to_numpy(states)[0, 1], windows[-(width - 1) :])
        results.append(to_numpy(y))
        launches.append(sum(cuda.driver.counts.launches.values()))
    assert launches == [2 + biased, 1]
    np.testing.assert_allclose(*results, atol=1e-6)


def test_a_scan_with_its_gate_is_one_launch() -> None:
    """``silu(z) (y + D x)``, as in Mamba 2, of rows that begin within larger ones."""
    d_state, dim, n_head, n_tokens = 16, 4, 4, 3
    results, launches, states_after = [], [], []
    for fusion in (False, True):
        cuda, rng = backend(fusion=fusion), np.random.default_rng(0)
        ctx = Context(no_alloc=True)
        parts = ctx.new_tensor_2d(F32, 40, n_tokens)  # x, then z
        x, z = (
            ops.view_3d(ctx, parts, (dim, n_head, n_tokens), (4 * dim, parts.nb[1]), 4 * first)
            for first in (0, 20)
        )
        states = ctx.new_tensor(F32, (d_state, dim, n_head, 2))
        dt, a, d = (ctx.new_tensor_2d(F32, *ne) for ne in ((4, n_tokens), (1, 4), (1, 4)))
        b, c = (ctx.new_tensor_3d(F32, d_state, 1, n_tokens) for _ in range(2))
        runs, slots = ctx.new_tensor_2d(I32, 3, 1), ctx.new_tensor_1d(I32, n_tokens)
        y = ops.ssm_scan_slots(ctx, states, x, dt, a, b, c, runs, slots)
        y = ops.add(ctx, y, ops.mul(ctx, x, d))
        y = ops.mul(ctx, y, ops.silu(ctx, z))
        alloc_ctx_tensors(ctx, cuda.buffer_type())
        for tensor in (parts, states, dt, a, d, b, c):
            tensor.set(-np.abs(rng.standard_normal(tensor.ne[::-1])).astype(np.float32))
        runs.set(np.array([[0, n_tokens, 1]], np.int32))
        slots.set(np.array([-1] * (n_tokens - 1) + [1], np.int32))
        graph = CGraph()
        graph.build_forward_expand(y)
        cuda.graph_compute(graph)
        results.append(to_numpy(y))
        states_after.append(to_numpy(states))
        launches.append(sum(cuda.driver.counts.launches.values()))
    assert launches == [5, 1]
    np.testing.assert_allclose(*results, atol=1e-6)
    np.testing.assert_array_equal(*states_after)
