"""The scheduler with twins of GPUs as its devices: any assignment, two runs at once, callbacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyggml.alloc import GraphAllocator
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.buffer import HOST
from pyggml.sched import Sched, to_numpy
from pyggml.tensor import Tensor
from tests.pyggml.alloc.strategies import Recipe, build, recipes
from tests.pyggml.sched.fake_device import HostOnly
from tests.pyggml.sched.test_random_graphs import alone, check_order, check_splits, values

pytest.importorskip("numba_cuda")
pytest.importorskip("greenlet")

from pyggml.backend.cuda.backend import CudaBackend

from .simulator import simulator_image
from .twin import TwinDriver

PINS = st.lists(st.integers(0, 2), min_size=32, max_size=32)


def gpu(number: int = 0) -> CudaBackend:
    driver = TwinDriver(cc=(7, 0), name=f"twin {number}")  # the simulator has no tensor cores
    return CudaBackend(driver, f"cuda{number}", compile=simulator_image)


def assert_close(got: list[npt.NDArray[Any]], want: list[npt.NDArray[Any]]) -> None:
    for a, b in zip(got, want, strict=True):
        finite = np.isfinite(a) & np.isfinite(b)
        np.testing.assert_allclose(a[finite], b[finite], rtol=1e-3, atol=1e-3)


@given(recipes(), PINS)
@settings(max_examples=3)
def test_any_assignment_to_two_gpus_and_the_cpu(recipe: Recipe, pins: list[int]) -> None:
    """Also in two runs in flight, the second of which replays what the first one launched."""
    want = [alone(recipe, seed) for seed in (1, 2)]
    random = build(recipe)
    gpus = gpu(0), gpu(1)
    sched = Sched([*gpus, HostOnly()])
    tensors = zip((*random.graph.nodes, *random.inputs), pins, strict=False)
    schedule = sched.compile(random.graph, pins={t: sched.backends[pin] for t, pin in tensors})
    check_order(schedule, random.graph)
    with np.errstate(all="ignore"):
        for _ in range(2):
            random.fill(1)
            schedule.enqueue()
            schedule.wait_inputs()
            random.fill(2)  # the last run may not have begun
            schedule.enqueue()
            sched.synchronize()
            assert_close(values(random), want[1])
        random.fill(1)
        schedule.run()
    assert_close(values(random), want[0])


@given(recipes(), PINS, st.lists(st.booleans(), min_size=64, max_size=64))
@settings(max_examples=12)
def test_watched_nodes_have_their_values(
    recipe: Recipe, pins: list[int], wants: list[bool]
) -> None:
    """Whatever of their sources the device has overwritten by then."""
    plain = build(recipe)
    GraphAllocator(HOST).alloc_graph(plain.graph)
    plain.fill()
    cpu, seen = CpuBackend(1, fusion=False), []
    for node in plain.graph.nodes:
        cpu.graph_compute(plain.graph.part([node]))
        seen.append(to_numpy(node))
    random = build(recipe)
    sched = Sched([gpu(), HostOnly()])
    for tensor, pin in zip(random.graph.nodes, pins, strict=False):
        if pin < 2:
            sched.set_tensor_backend(tensor, sched.backends[pin])
    sched.alloc_graph(random.graph)
    check_splits(sched, random.graph)
    random.fill()
    watched: list[int] = []

    def callback(node: Tensor, ask: bool) -> bool:
        i = random.graph.nodes.index(node)
        if ask:
            return wants[i]
        watched.append(i)
        assert_close([to_numpy(node)], [seen[i]])
        return True

    sched.set_eval_callback(callback)
    with np.errstate(all="ignore"):
        sched.graph_compute(random.graph)
    assert watched == [i for i in range(len(random.graph.nodes)) if wants[i]]
    assert_close(values(random), alone(recipe))
