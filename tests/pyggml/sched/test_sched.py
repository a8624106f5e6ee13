"""Single graphs: the backend of each node, the copies, and the rest of the interface."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pyggml as ops
from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.reference.backend import ReferenceBackend
from pyggml.buffer import HOST, HostBufferType
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import BackendError, UnsupportedOp
from pyggml.sched import Sched, assign, to_numpy
from pyggml.tensor import Buffer, Flag

from .fake_device import DeferredDevice, FakeDevice, HostOnly
from .graphs import chain, graph_of, input_of, move, prefer

F32 = GGMLType.F32


@pytest.mark.parametrize("kinds", ["F", "C", "FFFF", "FFCC", "CCFFCC", "FCFCFC", "CFFFC"])
def test_a_chain_has_one_copy_at_each_change(kinds: str) -> None:
    _, x, graph, nodes = chain(kinds)
    sched = Sched([FakeDevice({"SCALE"}), HostOnly({"CONT"}), ReferenceBackend()])
    prefer(sched, graph)
    sched.alloc_graph(graph)
    # inputs are in host memory
    changes = sum(a != b for a, b in zip("C" + kinds, kinds, strict=False))
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
    assert sched.n_splits == 8 and copied.count("fake#inputs#0") == 1
    assert len(copied) == 1 + 3 + 4  # both inputs; the chain goes there and back


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
    prefer(sched, graph)  # the write too, but the cache is in host memory
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


def test_writes_through_views_reach_a_cache_on_the_device() -> None:
    ctx, cache = Context(no_alloc=True), Context()
    device = FakeDevice()
    table = cache.from_numpy(np.zeros((6, 8), np.float32), "cache")
    move(table, device)
    x = ctx.new_tensor_2d(F32, 8, 2).set_input()
    ids = ctx.new_tensor_1d(GGMLType.I64, 2).set_input()
    graph = CGraph()
    window = ops.view_2d(ctx, table, 8, 2, table.nb[1], 2 * table.nb[1])
    graph.build_forward_expand(ops.cpy(ctx, ops.scale(ctx, x, 2.0), window))
    corner = ops.transpose(ctx, ops.view_2d(ctx, table, 2, 2, table.nb[1]))
    part = ops.cont(ctx, ops.view_2d(ctx, x, 2, 2, x.nb[1]))
    graph.build_forward_expand(ops.cpy(ctx, part, corner))
    graph.build_forward_expand(ops.set_rows(ctx, table, x, ids))
    graph.build_forward_expand(after := ops.cont(ctx, table))
    host = HostOnly()
    sched = Sched([device, host])
    for node in graph.nodes:  # all on the host, except the writes
        sched.set_tensor_backend(node, host)
    sched.alloc_graph(graph)
    assert [split.backend for split in sched.splits] == [1, 0, 1, 0, 1]
    values = np.arange(16, dtype=np.float32).reshape(2, 8) + 1
    x.set(values)
    ids.set([5, 4])
    sched.graph_compute(graph)
    want = np.zeros((6, 8), np.float32)
    want[2:4] = 2 * values
    want[:2, :2] = values[:, :2].T
    want[5], want[4] = values
    np.testing.assert_array_equal(to_numpy(table)[0, 0], want)
    np.testing.assert_array_equal(to_numpy(after), to_numpy(table))


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


def test_a_node_that_another_split_reads_is_not_fused_away() -> None:
    ctx = Context(no_alloc=True)
    x = input_of(ctx)
    norm = ops.rms_norm(ctx, x)
    scaled = ops.scale(ctx, norm, 2.0)
    graph = graph_of(product := ops.mul(ctx, norm, x), scaled)  # norm and mul could be one kernel
    sched = Sched([FakeDevice({"SCALE"}), HostOnly()])
    prefer(sched, graph)
    sched.alloc_graph(graph)
    assert [[n.op.name for n in s.nodes if n.op] for s in sched.splits] == [
        ["RMS_NORM", "MUL"], ["SCALE"],
    ]  # fmt: skip
    x.set(np.arange(256) + 1)
    sched.graph_compute(graph)
    rows = np.arange(256.0).reshape(4, 64) + 1
    want = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(to_numpy(scaled)[0, 0], 2 * want, rtol=1e-5)
    np.testing.assert_allclose(to_numpy(product)[0, 0], rows * want, rtol=1e-5)


def test_nodes_follow_a_view_of_a_cache() -> None:
    cache, ctx = Context(), Context(no_alloc=True)
    device = FakeDevice()
    move(table := cache.from_numpy(np.ones((6, 8), np.float32)), device)
    rows = ops.view_2d(ctx, table, 8, 2, table.nb[1])
    graph = graph_of(y := ops.mul_mat(ctx, rows, input_of(ctx, 8)))
    sched = Sched([device, HostOnly()])
    sched.alloc_graph(graph)
    assert sched.get_tensor_backend(y) is sched.get_tensor_backend(rows) is device


def test_a_later_buffer_of_a_copied_tensor_is_kept_until_the_copy() -> None:
    """The host's nodes before the copy must not reuse the memory of its source."""
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


def test_the_reference_runs_ops_that_no_other_backend_supports() -> None:
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


@pytest.mark.parametrize("lacks", ["CPY", "SCALE"])
def test_a_tensor_is_placed_where_all_its_writers_can_run(lacks: str) -> None:
    ctx = Context(no_alloc=True)
    x, y = input_of(ctx), input_of(ctx, name="y")
    target = ops.scale(ctx, x, 2.0)
    graph = CGraph()
    graph.build_forward_expand(target)
    graph.build_forward_expand(write := ops.cpy(ctx, y, target))
    graph.build_forward_expand(result := ops.cont(ctx, write))
    device, host = FakeDevice({"CPY", "SCALE", "CONT"} - {lacks}), HostOnly()
    sched = Sched([device, host])
    prefer(sched, graph)
    sched.alloc_graph(graph)
    assert sched.get_tensor_backend(target) is sched.get_tensor_backend(write) is host
    assert sched.get_tensor_backend(result) is device
    x.set(np.zeros(256))
    y.set(np.ones(256))
    sched.graph_compute(graph)
    assert (to_numpy(result) == 1).all()


def test_a_write_without_a_backend_for_its_memory_is_refused() -> None:
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


# --- the rest of the interface --------------------------------------------------------------------


def test_async_compute_waits_only_when_told() -> None:
    _, x, graph, nodes = chain("FF")
    device = DeferredDevice()
    sched = Sched([device, HostOnly()])
    schedule = sched.compile(graph, pins=dict.fromkeys(graph.nodes, device))
    x.set(np.ones(256))
    schedule.enqueue()
    assert len(device.deferred.waiting) == 2
    sched.synchronize()
    assert not device.deferred.waiting and (to_numpy(nodes[-1]) == 1.5**2).all()


def test_independent_devices_work_at_the_same_time() -> None:
    ctx = Context(no_alloc=True)
    x, y = input_of(ctx), input_of(ctx, name="y")
    a, b = ops.scale(ctx, x, 2.0), ops.scale(ctx, y, 3.0)
    graph = graph_of(a, b)
    devices = [DeferredDevice(name="one"), DeferredDevice(name="two")]
    sched = Sched([*devices, HostOnly()])
    pins = {tensor: devices[i] for tensor, i in ((x, 0), (y, 1), (a, 0), (b, 1))}
    schedule = sched.compile(graph, pins=pins)
    schedule.enqueue()
    assert [len(d.deferred.waiting) for d in devices] == [1, 1]
    assert not any(split.copies for split in schedule.splits)
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
    """Graphs that run alternately share memory; each is right after its inputs are set."""
    sched = Sched([FakeDevice({"SCALE"}), HostOnly()])
    made = [chain("FCF"), chain("CCFCC")]
    for _ in range(2):
        for (_, x, graph, nodes), n in zip(made, (2, 1), strict=True):
            prefer(sched, graph)
            sched.alloc_graph(graph)
            x.set(np.ones(256))
            sched.graph_compute(graph)
            assert (to_numpy(nodes[-1]) == 1.5**n).all()


@pytest.mark.parametrize("devices", [(), (FakeDevice,), (DeferredDevice,)])
def test_many_schedules_are_alive_over_one_memory(devices: tuple[Any, ...]) -> None:
    others = [device() for device in devices]
    sched = Sched([*others, HostOnly()])
    made = []
    for n in (5, 1, 3):
        _, x, graph, nodes = chain("F" * n)
        if n == 5:
            sched.reserve(graph)
        pins = dict.fromkeys(graph.nodes, sched.backends[0])
        made.append((n, x, nodes[-1], sched.compile(graph, pins=pins)))
    host = {x.buffer for _, x, _, _ in made}
    assert len(host) == 1 and sched.n_splits == 0
    for n, x, result, schedule in [*made, *made[::-1], *made]:
        x.set(np.ones(256))
        schedule.run()
        assert (schedule.read(result) == 1.5**n).all()
    assert all(len(backend.compiled) == 3 for backend in others)  # each was lowered once


def test_a_device_gets_all_inputs_in_one_copy() -> None:
    ctx = Context(no_alloc=True)
    x, y = input_of(ctx), input_of(ctx, name="y")
    window = ops.view_1d(ctx, y, 64, 256)
    graph = graph_of(ops.add(ctx, x, y), ops.scale(ctx, window, 2.0))
    device = FakeDevice()
    sched = Sched([device, HostOnly()])
    schedule = sched.compile(graph, pins=dict.fromkeys(graph.nodes, device))
    (split,) = schedule.splits
    assert [copy.dst.name for copy in split.copies] == ["fake#inputs#0"]
    for factor in (1, 2):
        x.set(factor * np.arange(256))
        y.set(factor * np.arange(256) ** 2 % 97)
        schedule.run()
        both = x.numpy(squeeze=False) + y.numpy(squeeze=False)
        np.testing.assert_array_equal(schedule.read(graph.nodes[0]), both)
        half = schedule.read(graph.nodes[-1]).ravel()
        np.testing.assert_array_equal(half, 2 * y.numpy().ravel()[64:128])


def test_only_one_program_can_be_traced() -> None:
    _, x, graph, _ = chain("FC")
    alone = Sched([HostOnly()]).compile(graph)
    x.set(np.ones(256))
    alone.run()
    (run,) = alone.trace()
    assert {traced.launch.node for traced in run.launches} == {n for n in graph.nodes if n.op}
    _, _, graph, _ = chain("FC")
    sched = Sched([FakeDevice({"SCALE"}), HostOnly()])
    cut = sched.compile(graph, pins=dict.fromkeys(graph.nodes, sched.backends[0]))
    with pytest.raises(BackendError, match="2 splits on several backends"):
        cut.trace()


def test_memory_that_exists_stays() -> None:
    ctx = Context()
    x = ctx.from_numpy(np.ones((4, 64), np.float32))
    graph = graph_of(y := ops.scale(ctx, x, 2.0))
    places = [(t.buffer, t.data) for t in (x, y)]
    fake = FakeDevice()
    sched = Sched([fake, HostOnly()])
    sched.set_tensor_backend(y, fake)  # impossible: y is in host memory already
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

    _, x, graph, _ = chain("FCFCFC")
    device = FakeDevice({"SCALE"})
    device.staging = Counting()
    sched = Sched([device, HostOnly()])
    prefer(sched, graph)
    sched.reserve(graph)
    sched.alloc_graph(graph)
    for _ in range(3):
        sched.graph_compute(graph)
    assert len(sizes) == 1
    buffer: Buffer | None = x.buffer
    assert buffer is not None and x.flags & Flag.INPUT


def test_the_log_says_what_a_device_has_no_kernel_for(caplog: pytest.LogCaptureFixture) -> None:
    """Large ARGSORTs and the like used to be left to the CPU without a word."""
    assign._say_once.cache_clear()
    for supported, asked, n_said in (
        ({"SCALE"}, "FCFC", 0),
        ({"SCALE", "CONT"}, "FFFF", 0),
        ({"SCALE"}, "FFFF", 1),
        ({"SCALE"}, "FFFF", 1),  # it is said once
    ):
        _, _, graph, nodes = chain("FCFC")
        sched = Sched([FakeDevice(supported), HostOnly()])
        for node, kind in zip(nodes, asked, strict=True):
            sched.set_tensor_backend(node, sched.backends["FC".index(kind)])
        sched.alloc_graph(graph)
        assert len(caplog.messages) == n_said
    (said,) = caplog.messages
    assert said.startswith("fake has no kernel for CONT") and "cpu computes it" in said
