"""Whatever backend computes whatever node, a graph has the bits of one backend alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyggml import ops
from pyggml.alloc import GraphAllocator, alloc_ctx_tensors
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.reference.backend import ReferenceBackend
from pyggml.buffer import HOST, Buffer, HostBufferType
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import BackendError, ComputeError, UnsupportedOp
from pyggml.sched import Sched, to_numpy
from pyggml.tensor import Flag, Tensor
from tests.pyggml.alloc.strategies import KINDS, RandomGraph, Recipe, build, recipes

from .fake_device import DeferredDevice, FakeDevice, HostOnly

F32 = GGMLType.F32
Arrays = list[npt.NDArray[Any]]
OPS = ("ADD", "MUL", "SCALE", "UNARY", "RMS_NORM", "SOFT_MAX", "CONT", "MUL_MAT", "GLU", "CPY",
       "SET_ROWS")  # fmt: skip
some_ops = st.none() | st.sets(st.sampled_from(OPS), min_size=3)


def values(random: RandomGraph) -> Arrays:
    return [to_numpy(t) for t in random.results]


def alone(recipe: Recipe) -> Arrays:
    random = build(recipe)
    GraphAllocator(HOST).alloc_graph(random.graph)
    random.fill()
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
    """Every node in one split and in order; no copy twice, none that could be done without."""
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


# --- random graphs, random backends ---------------------------------------------------------------


@given(recipes(), st.lists(st.integers(-1, 2), min_size=32, max_size=32), some_ops, st.booleans())
@settings(max_examples=500)
def test_any_assignment_has_the_same_bits(
    recipe: Recipe, pins: list[int], supported: set[str] | None, deferred: bool
) -> None:
    want, random = alone(recipe), build(recipe)
    device = (DeferredDevice if deferred else FakeDevice)(supported)
    sched = Sched([device, HostOnly()])
    for tensor, pin in zip((*random.inputs, *random.graph.nodes), pins, strict=False):
        if pin in (0, 1):
            sched.set_tensor_backend(tensor, sched.backends[pin])
    before = headers(random.graph)
    sched.alloc_graph(random.graph)
    check_splits(sched, random.graph)
    random.fill()
    sched.graph_compute(random.graph)
    assert_same_bits(values(random), want)
    buffers, programs = len(device.buft.sizes), len(device.compiled)
    sched.graph_compute(random.graph)  # inputs have survived; nothing is allocated or lowered
    assert_same_bits(values(random), want)
    assert (buffers, programs) == (len(device.buft.sizes), len(device.compiled))
    assert headers(random.graph) == before
    sched.reset()
    sched.alloc_graph(random.graph)  # another assignment of what has memory from here
    random.fill()
    sched.graph_compute(random.graph)
    assert_same_bits(values(random), want)


@given(recipes(), st.lists(st.integers(0, 3), min_size=32, max_size=32))
@settings(max_examples=100)
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


@given(recipes(), st.lists(st.booleans(), min_size=64, max_size=64))
@settings(max_examples=100)
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


# --- chosen graphs --------------------------------------------------------------------------------


def input_of(ctx: Context, n: int = 64, name: str = "x") -> Tensor:
    return ctx.new_tensor_2d(F32, n, 4).set_input().set_name(name)


def graph_of(*results: Tensor) -> CGraph:
    graph = CGraph()
    for result in results:
        graph.build_forward_expand(result)
    return graph


def prefer(sched: Sched, graph: CGraph) -> None:
    """Wish for the first backend wherever it can compute."""
    for node in graph.nodes:
        sched.set_tensor_backend(node, sched.backends[0])


def chain(kinds: str) -> tuple[Context, Tensor, CGraph, list[Tensor]]:
    """A chain with one node for each letter; F nodes are SCALE, C nodes are CONT."""
    ctx = Context(no_alloc=True)
    x = first = input_of(ctx)
    nodes = []
    for i, kind in enumerate(kinds):
        x = (ops.scale(ctx, x, 1.5) if kind == "F" else ops.cont(ctx, x)).set_name(f"n{i}")
        nodes.append(x)
    return ctx, first, graph_of(x), nodes


@pytest.mark.parametrize("kinds", ["F", "C", "FFFF", "FFCC", "CCFFCC", "FCFCFC", "CFFFC"])
def test_a_chain_has_one_copy_at_each_change(kinds: str) -> None:
    _, x, graph, nodes = chain(kinds)
    sched = Sched([FakeDevice({"SCALE"}), HostOnly({"CONT"}), ReferenceBackend()])
    prefer(sched, graph)
    sched.alloc_graph(graph)
    changes = sum(a != b for a, b in zip("C" + kinds, kinds, strict=False))  # inputs are the host's
    assert (sched.n_copies, sched.n_splits) == (changes, changes + (kinds[0] == "C"))
    for node, kind in zip(nodes, kinds, strict=True):
        backend = sched.get_tensor_backend(node)
        assert backend is not None and backend.name == ("fake" if kind == "F" else "cpu")
    start = np.arange(256, dtype=np.float32).reshape(4, 64)
    x.set(start)
    sched.graph_compute(graph)
    np.testing.assert_array_equal(to_numpy(nodes[-1])[0, 0], start * 1.5 ** kinds.count("F"))


def test_an_unchanged_input_is_copied_once() -> None:
    ctx = Context(no_alloc=True)
    x, y = input_of(ctx), input_of(ctx, name="y")
    cur = y
    for _ in range(4):
        cur = ops.cont(ctx, ops.add(ctx, cur, x))
    graph = graph_of(cur)
    sched = Sched([FakeDevice({"ADD"}), HostOnly()])
    prefer(sched, graph)
    sched.alloc_graph(graph)
    copied = [copy.dst.name for split in sched.splits for copy in split.copies]
    assert sched.n_splits == 8 and copied.count("fake#x#0") == 1
    assert len(copied) == 1 + 4 + 4  # x; the chain goes there and back four times


def test_windows_of_one_copied_tensor_share_the_copy() -> None:
    ctx = Context(no_alloc=True)
    x = input_of(ctx)
    parts = [ops.view_2d(ctx, x, 16, 4, x.nb[1], 64 * i) for i in range(4)]
    cur = ops.scale(ctx, x, 2.0)
    for part in parts:
        cur = ops.add(ctx, ops.view_2d(ctx, cur, 16, 4, cur.nb[1]), part)
    graph = graph_of(cur)
    sched = Sched([FakeDevice({"SCALE", "ADD"}), HostOnly()])
    prefer(sched, graph)
    sched.alloc_graph(graph)
    assert sched.n_copies == 1
    x.set(np.arange(256).reshape(4, 64))
    sched.graph_compute(graph)
    want = np.arange(256).reshape(4, 4, 16)
    np.testing.assert_array_equal(to_numpy(cur)[0, 0], 2 * want[:, 0] + want.sum(axis=1))


def test_a_content_that_changed_is_copied_again() -> None:
    ctx, cache = Context(no_alloc=True), Context(no_alloc=True)
    table = cache.new_tensor_2d(F32, 8, 4).set_name("cache")
    alloc_ctx_tensors(cache, HOST)
    x = ctx.new_tensor_2d(F32, 8, 1).set_input()
    ids = ctx.new_tensor_1d(GGMLType.I64, 1).set_input()
    graph = CGraph()
    graph.build_forward_expand(before := ops.scale(ctx, table, 2.0))
    graph.build_forward_expand(write := ops.set_rows(ctx, table, x, ids))
    graph.build_forward_expand(after := ops.scale(ctx, table, 3.0))
    graph.build_forward_expand(through := ops.scale(ctx, write, 4.0))
    sched = Sched([FakeDevice(), HostOnly()])
    prefer(sched, graph)  # the write too: but the cache is the host's
    sched.alloc_graph(graph)
    assert [s.backend for s in sched.splits] == [0, 1, 0]
    assert sched.n_copies == 2
    for row in (0, 3):  # the second compute sees what the first one wrote
        old = table.numpy().copy()
        x.set(np.full(8, row + 1))
        ids.set([row])
        sched.graph_compute(graph)
        new = old.copy()
        new[row] = row + 1
        np.testing.assert_array_equal(table.numpy(), new)
        for node, want in ((before, 2 * old), (after, 3 * new), (through, 4 * new)):
            np.testing.assert_array_equal(to_numpy(node)[0, 0], want)


@pytest.mark.parametrize("on_device", [False, True])
def test_nodes_follow_their_weights(on_device: bool) -> None:
    fake, host = FakeDevice(), HostOnly()
    ctx, weights = Context(no_alloc=True), Context(no_alloc=True)
    w = weights.new_tensor_2d(F32, 64, 8)
    alloc_ctx_tensors(weights, fake.buffer_type() if on_device else HOST)
    w.set(np.ones((8, 64), np.float32))
    x = input_of(ctx)
    graph = graph_of(y := ops.scale(ctx, ops.mul_mat(ctx, w, x), 0.5))
    sched = Sched([fake, host])
    sched.alloc_graph(graph)
    assert sched.get_tensor_backend(graph.nodes[0]) is (fake if on_device else host)
    assert sched.get_tensor_backend(w) is (fake if on_device else host)
    assert sched.n_splits == 1 and sched.n_copies == int(on_device)
    x.set(np.ones(256))
    sched.graph_compute(graph)
    np.testing.assert_array_equal(to_numpy(y), np.full((1, 1, 4, 8), 32.0))


def test_a_later_buffer_of_a_copied_tensor_is_kept_until_the_copy() -> None:
    """The host's own nodes in between must not reuse memory that is still to be copied."""
    ctx = Context(no_alloc=True)
    x = input_of(ctx)
    early = ops.cont(ctx, x)
    cur = x
    for _ in range(5):
        cur = ops.cont(ctx, cur)
    graph = CGraph()
    graph.build_forward_expand(early)
    graph.build_forward_expand(cur)
    graph.build_forward_expand(result := ops.add(ctx, cur, early))
    sched = Sched([FakeDevice({"ADD"}), HostOnly()])
    prefer(sched, graph)
    sched.alloc_graph(graph)
    x.set(np.arange(256))
    sched.graph_compute(graph)
    np.testing.assert_array_equal(to_numpy(result).ravel(), 2 * np.arange(256))


def test_the_reference_takes_what_the_others_lack() -> None:
    def norm_soft_max_add() -> CGraph:
        ctx = Context(no_alloc=True)
        x = input_of(ctx)
        return graph_of(ops.add(ctx, ops.soft_max(ctx, ops.rms_norm(ctx, x)), x))

    graph = norm_soft_max_add()
    sched = Sched([FakeDevice({"RMS_NORM"}), HostOnly({"ADD"}), ReferenceBackend()])
    prefer(sched, graph)
    sched.alloc_graph(graph)
    took = [sched.get_tensor_backend(n) for n in graph.nodes]
    assert [b.name for b in took if b] == ["fake", "reference", "cpu"]
    with pytest.raises(UnsupportedOp, match=r"\(fake, cpu\) computes '.*' = SOFT_MAX"):
        Sched([FakeDevice({"RMS_NORM"}), HostOnly({"ADD"})]).alloc_graph(norm_soft_max_add())


def test_a_write_that_no_backend_can_do_where_the_memory_is() -> None:
    fake = FakeDevice({"ADD"})
    ctx, cache = Context(no_alloc=True), Context(no_alloc=True)
    table = cache.new_tensor_2d(F32, 8, 4).set_name("cache_k_l0")
    alloc_ctx_tensors(cache, fake.buffer_type())
    ids = ctx.new_tensor_1d(GGMLType.I64, 1)
    graph = graph_of(ops.set_rows(ctx, table, ctx.new_tensor_2d(F32, 8, 1), ids))
    with pytest.raises(UnsupportedOp, match=r"SET_ROWS .* in the FAKE memory of 'cache_k_l0'"):
        Sched([fake, HostOnly(), ReferenceBackend()]).alloc_graph(graph)


def test_a_python_callable_runs_on_the_host() -> None:
    ctx = Context(no_alloc=True)

    def double(dst: npt.NDArray[Any], x: npt.NDArray[Any]) -> None:
        dst[...] = 2 * x

    x = input_of(ctx)
    graph = graph_of(y := ops.scale(ctx, ops.map_custom(ctx, double, ops.scale(ctx, x, 2)), 2))
    sched = Sched([FakeDevice(), HostOnly()])
    sched.set_tensor_backend(graph.nodes[0], sched.backends[0])
    sched.set_tensor_backend(y, sched.backends[0])
    sched.alloc_graph(graph)
    assert [s.backend for s in sched.splits] == [0, 1, 0]
    x.set(np.ones(256))
    sched.graph_compute(graph)
    assert (to_numpy(y) == 8).all()


# --- the callback ---------------------------------------------------------------------------------


def test_false_ends_the_compute() -> None:
    _, x, graph, nodes = chain("CFCFC")
    fake = FakeDevice({"SCALE"})
    sched = Sched([fake, HostOnly()])
    prefer(sched, graph)
    sched.alloc_graph(graph)
    x.set(np.ones(256))
    calls: list[tuple[str, bool]] = []

    def callback(node: Tensor, ask: bool) -> bool:
        calls.append((node.name, ask))
        return ask and node.name == "n1"

    sched.set_eval_callback(callback)
    sched.graph_compute(graph)
    assert calls == [("n0", True), ("n1", True), ("n1", False)]
    assert fake.compiled == [["SCALE"]]
    sched.set_eval_callback(None)
    sched.graph_compute(graph)
    assert (to_numpy(nodes[-1]) == 1.5**2).all()


def test_a_watched_node_is_not_fused_away() -> None:
    ctx = Context(no_alloc=True)
    x = input_of(ctx)
    norm = ops.rms_norm(ctx, x)
    graph = graph_of(ops.mul(ctx, norm, x))
    sched = Sched([CpuBackend(1)])
    sched.alloc_graph(graph)
    x.set(np.arange(256))
    seen = []

    def callback(node: Tensor, ask: bool) -> bool:
        if not ask:
            seen.append(to_numpy(node)[0, 0])
        return node is norm

    sched.set_eval_callback(callback)
    sched.graph_compute(graph)
    rows = np.arange(256.0).reshape(4, 64)
    want = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(seen[0], want, rtol=1e-5)


def test_an_error_leaves_nothing_in_the_queue() -> None:
    ctx = Context(no_alloc=True)

    def fail(dst: npt.NDArray[Any], x: npt.NDArray[Any]) -> None:
        raise ComputeError("on purpose")

    x, y = input_of(ctx), input_of(ctx, name="y")
    graph = graph_of(ops.scale(ctx, x, 2.0), ops.map_custom(ctx, fail, y))
    device = DeferredDevice()
    sched = Sched([device, HostOnly()])
    sched.set_tensor_backend(graph.nodes[0], device)
    sched.alloc_graph(graph)
    for tensor in (x, y):
        tensor.set(np.ones(256))
    with pytest.raises(ComputeError, match="on purpose"):
        sched.graph_compute(graph)
    assert not device.queue


# --- the rest of the interface --------------------------------------------------------------------


def test_async_compute_waits_only_when_told() -> None:
    _, x, graph, nodes = chain("FF")
    device = DeferredDevice()
    sched = Sched([device, HostOnly()])
    prefer(sched, graph)
    sched.alloc_graph(graph)
    x.set(np.ones(256))
    sched.graph_compute_async(graph)
    assert len(device.queue) == 1
    sched.synchronize()
    assert not device.queue and (to_numpy(nodes[-1]) == 1.5**2).all()


def test_independent_devices_work_at_the_same_time() -> None:
    ctx = Context(no_alloc=True)
    x, y = input_of(ctx), input_of(ctx, name="y")
    a, b = ops.scale(ctx, x, 2.0), ops.scale(ctx, y, 3.0)
    graph = graph_of(a, b)
    devices = [DeferredDevice(name="one"), DeferredDevice(name="two")]
    sched = Sched([*devices, HostOnly()])
    for tensor, device in ((x, 0), (y, 1), (a, 0), (b, 1)):
        sched.set_tensor_backend(tensor, devices[device])
    sched.alloc_graph(graph)
    sched.graph_compute_async(graph)
    assert [len(d.queue) for d in devices] == [1, 1] and sched.n_copies == 0
    sched.synchronize()


def test_a_graph_that_grew_is_scheduled_again() -> None:
    ctx, x, graph, nodes = chain("F")
    sched = Sched([HostOnly()])
    sched.graph_compute(graph)
    graph.build_forward_expand(more := ops.cont(ctx, nodes[-1]))
    sched.alloc_graph(graph)
    x.set(np.ones(256))
    sched.graph_compute(graph)
    assert (to_numpy(more) == 1.5).all()


def test_results_stay_where_the_caller_reads_them() -> None:
    """Graphs in turn share memory; each computes right when its inputs are written again."""
    sched = Sched([FakeDevice({"SCALE"}), HostOnly()])
    made = [chain("FCF"), chain("CCFCC")]
    for _ in range(2):
        for (_, x, graph, nodes), n in zip(made, (2, 1), strict=True):
            prefer(sched, graph)
            sched.alloc_graph(graph)
            x.set(np.ones(256))
            sched.graph_compute(graph)
            assert (to_numpy(nodes[-1]) == 1.5**n).all()


def test_memory_that_exists_stays() -> None:
    ctx = Context()
    x = ctx.from_numpy(np.ones((4, 64), np.float32))
    graph = graph_of(y := ops.scale(ctx, x, 2.0))
    places = [(t.buffer, t.data) for t in (x, y)]
    fake = FakeDevice()
    sched = Sched([fake, HostOnly()])
    sched.set_tensor_backend(y, fake)  # cannot be: y is in the host's memory already
    sched.graph_compute(graph)
    assert [(t.buffer, t.data) for t in (x, y)] == places and (y.numpy() == 2).all()
    assert not fake.compiled and sched.get_tensor_backend(y) is sched.backends[1]


def test_views_only_and_nothing_at_all() -> None:
    ctx = Context(no_alloc=True)
    x = input_of(ctx)
    for graph in (graph_of(ops.transpose(ctx, x)), CGraph()):
        sched = Sched([FakeDevice(), HostOnly()])
        sched.graph_compute(graph)
        assert sched.n_copies == 0
    empty = ctx.new_tensor_1d(F32, 0)
    sched.graph_compute(graph_of(ops.scale(ctx, empty, 2.0), ops.scale(ctx, x, 1.0)))


def test_bad_backends() -> None:
    with pytest.raises(BackendError, match="1 to 16 backends: 0"):
        Sched([])
    with pytest.raises(BackendError, match="last backend is 'fake' on a gpu"):
        Sched([FakeDevice()])
    _, _, _, nodes = chain("F")
    with pytest.raises(BackendError, match="'fake' is not of this scheduler, which has cpu"):
        Sched([HostOnly()]).set_tensor_backend(nodes[0], FakeDevice())
    assert Sched([HostOnly()]).get_tensor_backend(nodes[0]) is None


def test_the_host_allocates_once() -> None:
    sizes: list[int] = []

    class Counting(HostBufferType):
        def alloc_buffer(self, size: int) -> Any:
            sizes.append(size)
            return super().alloc_buffer(size)

    class Host(HostOnly):
        buft = Counting()

        def buffer_type(self) -> Any:
            return self.buft

    _, x, graph, _ = chain("FCFCFC")
    sched = Sched([FakeDevice({"SCALE"}), Host()])
    prefer(sched, graph)
    sched.reserve(graph)
    sched.alloc_graph(graph)
    for _ in range(3):
        sched.graph_compute(graph)
    assert len(sizes) == 1
    buffer: Buffer | None = x.buffer
    assert buffer is not None and x.flags & Flag.INPUT
