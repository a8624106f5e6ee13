"""For any assignment of nodes to backends, a graph has the bits of a single backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

import pyggml as ops
from pyggml.alloc import GraphAllocator
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.interface import HostQueue
from pyggml.backend.reference.backend import ReferenceBackend
from pyggml.buffer import HOST
from pyggml.cgraph import CGraph
from pyggml.sched import Sched, Schedule, to_numpy
from pyggml.sched.assign import runs
from pyggml.tensor import Tensor
from tests.pyggml.alloc.strategies import KINDS, RandomGraph, Recipe, build, recipes

from .fake_device import DeferredDevice, FakeDevice, HostOnly
from .graphs import move

Arrays = list[npt.NDArray[Any]]
OPS = ("ADD", "MUL", "SCALE", "UNARY", "RMS_NORM", "SOFT_MAX", "CONT", "MUL_MAT", "GLU", "CPY",
       "SET_ROWS")  # fmt: skip
some_ops = st.none() | st.sets(st.sampled_from(OPS), min_size=3)


def values(random: RandomGraph) -> Arrays:
    return [to_numpy(t) for t in random.results]


def alone(recipe: Recipe, seed: int = 0) -> Arrays:
    random = build(recipe)
    GraphAllocator(HOST).alloc_graph(random.graph)
    random.fill(seed)
    CpuBackend(1).graph_compute(random.graph)
    return values(random)


def assert_same_bits(got: Arrays, want: Arrays) -> None:
    for a, b in zip(got, want, strict=True):
        same = (a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b)
        assert same.all()


def headers(graph: CGraph) -> list[Any]:
    tensors = (*graph.nodes, *graph.leafs)
    return [(t, t.op, t.src, t.flags, t.name, t.view_src, t.ne, t.nb) for t in tensors]


def check_splits(sched: Sched, graph: CGraph) -> None:
    """Every node is in one split and in order; no copy is duplicate or needless."""
    nodes = [n for split in sched.splits for n in split.nodes]
    assert nodes == graph.nodes
    assert all(a.backend != b.backend for a, b in zip(sched.splits, sched.splits[1:], strict=False))
    for split in sched.splits:
        reach = sched.backends[split.backend].supports_buft
        for copy in split.copies:
            assert copy.src.buffer is not None and copy.dst.buffer is not None
            assert not reach(copy.src.buffer.buft) and reach(copy.dst.buffer.buft)
            assert copy.dst.name.startswith(sched.backends[split.backend].name + "#")
    names = [copy.dst.name for split in sched.splits for copy in split.copies]
    assert len(names) == sched.n_copies


@given(recipes(), st.lists(st.integers(-1, 2), min_size=32, max_size=32), some_ops, st.booleans())
@settings(max_examples=150)
def test_any_assignment_has_the_same_bits(
    recipe: Recipe, pins: list[int], supported: set[str] | None, deferred: bool
) -> None:
    want, random = alone(recipe), build(recipe)
    device = (DeferredDevice if deferred else FakeDevice)(supported)
    sched = Sched([device, HostOnly()])
    for tensor, pin in zip((*random.inputs, *random.graph.nodes), pins, strict=False):
        if pin in (0, 1):
            sched.set_tensor_backend(tensor, sched.backends[pin])
    for i, node in enumerate(random.graph.nodes):  # some weights live on the device
        weight = node.src[0]
        if node.op is ops.OPS["MUL_MAT"] and pins[-1 - i % 32] == 0 and weight is not None:
            move(weight, device)
    before = headers(random.graph)
    sched.alloc_graph(random.graph)
    check_splits(sched, random.graph)
    random.fill()
    sched.graph_compute(random.graph)
    assert_same_bits(values(random), want)
    buffers, programs = len(device.buft.sizes), len(device.compiled)
    sched.graph_compute(random.graph)  # inputs are intact; no allocation, no lowering
    assert_same_bits(values(random), want)
    assert (buffers, programs) == (len(device.buft.sizes), len(device.compiled))
    assert headers(random.graph) == before
    sched.reset()
    sched.alloc_graph(random.graph)  # another assignment, with memory allocated
    random.fill()
    sched.graph_compute(random.graph)
    assert_same_bits(values(random), want)


@given(recipes(), st.lists(st.integers(0, 3), min_size=32, max_size=32))
@settings(max_examples=50)
def test_two_devices_and_the_reference_below(recipe: Recipe, pins: list[int]) -> None:
    want, random = alone(recipe), build(recipe)
    devices = [DeferredDevice({"ADD", "MUL_MAT", "RMS_NORM", "CPY"}), FakeDevice({"CONT", "ADD"})]
    sched = Sched([*devices, HostOnly({"GLU", "SCALE", "SET_ROWS"}), ReferenceBackend()])
    for tensor, pin in zip(random.graph.nodes, pins, strict=False):
        sched.set_tensor_backend(tensor, sched.backends[pin])
    sched.alloc_graph(random.graph)
    check_splits(sched, random.graph)
    random.fill()
    with np.errstate(all="ignore"):
        sched.graph_compute(random.graph)
    for got, exact in zip(values(random), want, strict=True):
        finite = np.isfinite(exact) & np.isfinite(got)
        np.testing.assert_allclose(got[finite], exact[finite], rtol=1e-3, atol=1e-3)


def check_order(schedule: Schedule, graph: CGraph) -> None:
    """Nodes that share a tensor which one of them writes are in the order of the graph."""
    place = {n: i for i, n in enumerate(n for split in schedule.splits for n in split.nodes)}
    assert sorted(place, key=id) == sorted(graph.nodes, key=id)
    for i, later in enumerate(graph.nodes):
        if not runs(later):
            continue
        for other in filter(runs, graph.nodes[:i]):
            sources = [{s.root for s in node.src if s is not None} for node in (other, later)]
            if later.root is other.root or other.root in sources[1] or later.root in sources[0]:
                assert place[other] < place[later]


def fetched(tensor: Tensor, devices: list[FakeDevice]) -> Tensor:
    """A copy in host memory, made by the device that has the tensor, in the order of its queue."""
    copy = Tensor(tensor.type, tensor.ne, tensor.nb)
    copy.buffer = HOST.alloc_buffer(tensor.nbytes)
    copy.data = copy.buffer.base
    assert tensor.buffer is not None
    owner = [device.queue for device in devices if device.buft is tensor.buffer.buft]
    (*owner, HostQueue())[0].copy(tensor, copy)
    return copy


@given(recipes(), st.lists(st.integers(0, 2), min_size=32, max_size=32), st.booleans())
@settings(max_examples=150)
def test_splits_that_overlap_have_the_same_bits(
    recipe: Recipe, pins: list[int], late: bool
) -> None:
    """On a device that computes as late as it may and another one, also in two runs in flight."""
    want = [alone(recipe, seed) for seed in (1, 2)]
    random = build(recipe)
    devices = [DeferredDevice(name="one"), (DeferredDevice if late else FakeDevice)(name="two")]
    sched = Sched([*devices, HostOnly()])
    tensors = zip((*random.graph.nodes, *random.inputs), pins, strict=False)
    schedule = sched.compile(random.graph, pins={t: sched.backends[pin] for t, pin in tensors})
    check_order(schedule, random.graph)
    computed = [(i, t) for i, t in enumerate(random.results) if t.root not in random.inputs]
    programs, compiled = schedule.programs, [len(d.compiled) for d in devices]
    for _ in range(2):
        random.fill(1)
        schedule.enqueue()
        first = {i: fetched(t, devices) for i, t in computed}
        schedule.wait_inputs()
        random.fill(2)  # the last run may not have begun
        schedule.enqueue()
        sched.synchronize()
        assert_same_bits([to_numpy(t) for t in first.values()], [want[0][i] for i in first])
        assert_same_bits(values(random), want[1])
        random.fill(1)
        schedule.run()
        assert_same_bits(values(random), want[0])
    assert programs == schedule.programs and compiled == [len(d.compiled) for d in devices]


@given(recipes(), st.lists(st.booleans(), min_size=64, max_size=64))
@settings(max_examples=40)
def test_watched_nodes_have_the_bits_of_each_node_alone(recipe: Recipe, wants: list[bool]) -> None:
    plain = build(recipe)
    GraphAllocator(HOST).alloc_graph(plain.graph)
    plain.fill()
    cpu, seen = CpuBackend(1, fusion=False), []
    for node in plain.graph.nodes:
        cpu.graph_compute(plain.graph.part([node]))
        seen.append(to_numpy(node))
    random = build(recipe)
    sched = Sched([FakeDevice({"ADD", "MUL", "RMS_NORM"}), HostOnly()])
    sched.alloc_graph(random.graph)
    random.fill()
    asked: list[Tensor] = []
    watched: list[int] = []

    def callback(node: Tensor, ask: bool) -> bool:
        i = random.graph.nodes.index(node)
        if ask:
            asked.append(node)
            return wants[i]
        assert node is asked[-1]
        watched.append(i)
        assert_same_bits([to_numpy(node)], [seen[i]])
        return True

    sched.set_eval_callback(callback)
    sched.graph_compute(random.graph)
    assert asked == random.graph.nodes
    assert watched == [i for i in range(len(asked)) if wants[i]]
    assert_same_bits(values(random), alone(recipe))


@given(recipes())
@settings(max_examples=60)
def test_one_backend_needs_one_split_and_no_copy(recipe: Recipe) -> None:
    random = build(recipe)
    sched = Sched([CpuBackend(1), ReferenceBackend()])
    sched.reserve(random.graph)
    size = sched.buffer_size(sched.backends[0])
    assert size == GraphAllocator(HOST).reserve(build(recipe).graph)
    sched.graph_compute(random.graph)
    assert (sched.n_splits, sched.n_copies) == (1, 0)
    assert sched.buffer_size(sched.backends[0]) == size  # reserve was enough


def test_the_recipes_use_all_ops_that_matter() -> None:
    assert {"set_rows", "cpy", "transpose", "mul_mat"} <= set(KINDS)
