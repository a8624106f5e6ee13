"""On an NVIDIA GPU: lifetimes of memory, streams and code, aborts, and numbers out of range.

What twins and emulators cannot show. In a checkout on a machine with a GPU, under a minute:

pytest -m gpu tests/pyggml/backend/cuda/test_on_hardware.py
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pyggml as ops
from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.cuda import discovery
from pyggml.backend.interface import Backend
from pyggml.backend.reference.backend import ReferenceBackend
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import Aborted, ComputeError
from pyggml.ops.attention.attention import FLASH_ATTN_EXT
from pyggml.sched import Sched, Schedule, to_numpy
from pyggml.tensor import Tensor
from tests.pyggml.ops.attention_lists import FAULTS, HARMLESS, attention
from tests.pyggml.ops.harness import nmse

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not discovery.devices(), reason=discovery.why_none() or "a GPU"),
    pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning"),  # numba-cuda's
]
F32, F16, I32 = GGMLType.F32, GGMLType.F16, GGMLType.I32
N = 2048


def gpu(number: int = 0) -> Any:
    """A new backend of a GPU."""
    return discovery.factory(f"cuda{number}")()


@pytest.fixture(scope="module")
def backend() -> Iterator[Any]:
    made = gpu()
    yield made
    made.close()


def products(backend: Backend, n: int) -> tuple[CGraph, Tensor]:
    """``n`` products with the identity matrix, one after the other, of a matrix of ones."""
    ctx, graph = Context(no_alloc=True), CGraph()
    identity, ones = (ctx.new_tensor_2d(F32, N, N) for _ in range(2))
    y = ones
    for _ in range(n):
        y = ops.mul_mat(ctx, identity, y)
    graph.build_forward_expand(y)
    alloc_ctx_tensors(ctx, backend.buffer_type())
    identity.set(np.eye(N, dtype=np.float32))
    ones.set(np.ones((N, N), np.float32))
    return graph, y


def is_pinned(address: int) -> bool:
    """Whether the driver knows the address."""
    from cuda.bindings import driver as cuda

    which = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    result, kind = cuda.cuPointerGetAttribute(which, address)
    known = result == cuda.CUresult.CUDA_SUCCESS
    return bool(known and int(kind) == int(cuda.CUmemorytype.CU_MEMORYTYPE_HOST))


# --- lifetimes ---


def test_arrays_outlive_their_pinned_buffer(backend: Any) -> None:
    ctx = Context(no_alloc=True)
    x = ctx.new_tensor_2d(F32, N, 64)
    alloc_ctx_tensors(ctx, backend.staging_type())
    x.numpy()[...] = 7
    address, view = x.data, x.numpy()[3:].reshape(-1)[::5]
    assert is_pinned(address)
    del ctx, x
    gc.collect()
    others = [backend.staging_type().alloc_buffer(4 * N * 64) for _ in range(8)]
    assert is_pinned(address) and (view == 7).all() and len(others) == 8
    del view
    gc.collect()
    assert not is_pinned(address)


def test_results_of_the_cpu_outlive_the_scheduler() -> None:
    """A model with a GPU has them in pinned memory."""
    device = gpu()
    sched = Sched([device, CpuBackend(1)])
    ctx, graph = Context(no_alloc=True), CGraph()
    x = ctx.new_tensor_1d(F32, 1 << 16).set_input()
    y = ops.scale(ctx, ops.scale(ctx, x, 2.0), 2.0).set_output()
    graph.build_forward_expand(y)
    schedule = sched.compile(graph, pins=dict.fromkeys(graph.nodes, sched.backends[1]))
    x.set(np.ones(1 << 16))
    schedule.run()
    result, address = y.numpy(), y.data
    assert is_pinned(address)
    del device, sched, ctx, graph, x, y, schedule
    gc.collect()
    assert (result == 4).all() and is_pinned(address)
    del result
    gc.collect()
    assert not is_pinned(address)


def test_backends_free_what_they_took(backend: Any) -> None:
    """Streams, code, work memory and graphs; the first ones make the driver's own pools grow."""
    free = []
    for i in range(60):
        made = gpu()
        graph, y = products(made, 3)
        program = made.compile(graph)
        for _ in range(3):  # launched, captured, replayed
            program.enqueue()
        made.queue.synchronize()
        if i % 2:
            made.close()
        del made, graph, y, program
        gc.collect()
        free.append(backend.driver.memory()[0])
    assert free[9] - free[-1] <= 2 << 20, free


def test_a_backend_may_go_while_it_computes() -> None:
    """Its code is unloaded and its memory is freed after the work."""
    for _ in range(3):
        made = gpu()
        graph, y = products(made, 100)
        made.compile(graph).enqueue()
        del made, graph, y
        gc.collect()
    made = gpu()
    graph, y = products(made, 2)
    made.graph_compute(graph)
    assert (to_numpy(y) == 1).all()


@pytest.mark.skipif(len(discovery.devices()) < 2, reason="one GPU")
def test_two_gpus_in_one_thread() -> None:
    pair, made = (gpu(0), gpu(1)), []
    for one in (*pair, *pair):
        graph, y = products(one, 2)
        one.graph_compute(graph)
        made.append((graph, y))
    assert all((to_numpy(y) == 1).all() for _, y in made)


# --- aborts ---


@pytest.fixture(scope="module")
def long_run(backend: Any) -> tuple[Sched, Schedule, Tensor]:
    sched = Sched([backend, CpuBackend(1)])
    graph, y = products(backend, 200)
    return sched, sched.compile(graph), y


def test_an_abort_of_nothing(long_run: tuple[Sched, Schedule, Tensor]) -> None:
    sched, schedule, y = long_run
    for _ in range(4):  # launched, captured, replayed
        sched.abort()
        schedule.run()
    assert (to_numpy(y) == 1).all()


def test_an_abort_of_queued_work(long_run: tuple[Sched, Schedule, Tensor]) -> None:
    sched, schedule, y = long_run
    for n_runs in (1, 2, 3):
        for _ in range(n_runs):
            schedule.enqueue()
        sched.abort()
        with pytest.raises(Aborted):
            sched.synchronize()
        schedule.run()
    assert (to_numpy(y) == 1).all()


def test_an_abort_from_another_thread(long_run: tuple[Sched, Schedule, Tensor]) -> None:
    sched, schedule, y = long_run
    over = threading.Event()

    def abort() -> None:
        while not over.wait(0.001):
            sched.abort()

    thread = threading.Thread(target=abort)
    thread.start()
    try:
        with pytest.raises(Aborted):
            for _ in range(100):
                schedule.run()
    finally:
        over.set()
        thread.join()
    schedule.run()
    assert (to_numpy(y) == 1).all()


# --- numbers out of range, and large ones ---


@pytest.mark.parametrize("n_tokens", [3, 40])  # by decode_kernel, and by tensor cores
def test_lists_of_cells(n_tokens: int, backend: Any) -> None:
    for name, change in FAULTS.items():
        graph, _ = attention(backend, n_tokens, change, n_head=2)
        with pytest.raises(ComputeError, match="'attended' = FLASH_ATTN_EXT: an index is out of"):
            backend.graph_compute(graph)
            pytest.fail(name)
    for change in HARMLESS.values():
        graph, node = attention(backend, n_tokens, change, n_head=2)
        backend.graph_compute(graph)
        wanted, result = attention(ReferenceBackend(), n_tokens, change, n_head=2)
        ReferenceBackend().graph_compute(wanted)
        assert nmse(to_numpy(node), to_numpy(result)) <= FLASH_ATTN_EXT.tolerance(node)


def test_more_uses_of_experts_than_a_grid_has_rows(backend: Any) -> None:
    n_tokens, rng = 40_000, np.random.default_rng(0)
    ctx, graph = Context(no_alloc=True), CGraph()
    w = ctx.new_tensor_3d(F16, 64, 6, 4)
    x, ids = ctx.new_tensor_3d(F32, 64, 1, n_tokens), ctx.new_tensor_2d(I32, 2, n_tokens)
    y = ops.mul_mat_id(ctx, w, x, ids)
    graph.build_forward_expand(y)
    alloc_ctx_tensors(ctx, backend.buffer_type())
    matrices = rng.standard_normal((4, 6, 64)).astype(np.float16)
    values = rng.standard_normal((n_tokens, 1, 64)).astype(np.float32)
    chosen = rng.integers(0, 4, (n_tokens, 2)).astype(np.int32)
    for tensor, data in ((w, matrices), (x, values), (ids, chosen)):
        tensor.set(data)
    assert backend.supports_op(y)
    backend.graph_compute(graph)
    want = np.einsum("turk,tk->tur", matrices.astype(np.float32)[chosen], values[:, 0])
    assert nmse(to_numpy(y)[0], want) < 1e-6
