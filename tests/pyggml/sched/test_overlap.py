"""Devices and the CPU at the same time: what is enqueued before the CPU computes, and its waits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import pyggml as ops
from pyggml.backend.interface import Backend
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.sched import DeviceCopy, Sched, Split
from pyggml.tensor import Tensor

from .fake_device import DeferredDevice, HostOnly, Log
from .graphs import graph_of, input_of, move

N_LAYER = 3
VALUES = np.linspace(-2, 2, 256, dtype=np.float32).reshape(4, 64)


def layers(
    shared: Backend,
    one: Backend,
    two: Backend,
    *,
    added: Backend | None = None,
    swapped: bool = False,
) -> tuple[CGraph, Tensor, dict[Tensor, Backend]]:
    """Layers with RMS_NORM on one backend, products on two others, and their sum.

    Args:
        one, two: compute MUL_MAT and SCALE, and MUL_MAT and UNARY.
        added: computes the sum; None for ``shared``.
        swapped: whether the part of ``two`` comes first.
    """
    ctx, graph, pins = Context(no_alloc=True), CGraph(), dict[Tensor, Backend]()
    cur = x = input_of(ctx)
    for _ in range(N_LAYER):
        norm = ops.rms_norm(ctx, cur)
        own = [ops.mul_mat(ctx, weight_on(backend), norm) for backend in (one, two)]
        parts = [ops.scale(ctx, own[0], 0.5), ops.relu(ctx, own[1])]
        for part in reversed(parts) if swapped else parts:
            graph.build_forward_expand(part)
        cur = ops.add(ctx, *parts)
        graph.build_forward_expand(cur)
        pins |= {norm: shared, parts[0]: one, parts[1]: two, cur: added or shared}
    return graph, x, pins


def weight_on(backend: Backend) -> Tensor:
    """The identity matrix in a backend's memory."""
    weight = Context().from_numpy(np.eye(64, dtype=np.float32))
    if isinstance(backend, DeferredDevice):
        move(weight, backend)
    return weight


def computed() -> npt.NDArray[np.float32]:
    """The result of ``layers``."""
    cur = VALUES
    for _ in range(N_LAYER):
        norm = cur / np.sqrt((cur**2).mean(axis=1, keepdims=True) + 1e-5)
        cur = norm / 2 + np.maximum(norm, 0)
    return cur


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("shared", ["cpu", "deferred"])
@pytest.mark.parametrize("added", ["cpu", "deferred"])
def test_the_cpu_computes_beside_a_device(swapped: bool, shared: str, added: str) -> None:
    log: Log = []
    device, host = DeferredDevice(log=log), HostOnly(log=log)
    sched = Sched([device, host])
    named: dict[str, Backend] = {"cpu": host, "deferred": device}
    graph, x, pins = layers(named[shared], device, host, added=named[added], swapped=swapped)
    schedule = sched.compile(graph, pins=pins)
    for _ in range(2):
        x.set(VALUES)
        log.clear()
        schedule.run()
        on_cpu = [i for i, e in enumerate(log) if e == ("run", "cpu", "MUL_MAT UNARY")]
        assert len(on_cpu) == N_LAYER
        for layer, i in enumerate(on_cpu):  # the device's part is in its queue, and was not awaited
            assert log[:i].count(("enqueue", "deferred", "MUL_MAT SCALE")) == layer + 1
            assert log[:i].count(("run", "deferred", "MUL_MAT SCALE")) == layer
        assert not [i for i, e in enumerate(log) if e[0] == "synchronize" and i < on_cpu[-1]]
        np.testing.assert_allclose(schedule.read(graph.nodes[-1])[0, 0], computed(), rtol=1e-4)
    # one split for each part of a layer, and the sum with the next shared part if they can be one
    assert len(schedule.splits) == (3 if shared == added else 4) * N_LAYER + (shared == added)


def test_two_devices_compute_beside_each_other() -> None:
    log: Log = []
    one, two = DeferredDevice(name="one", log=log), DeferredDevice(name="two", log=log)
    sched = Sched([one, two, HostOnly(log=log)])
    graph, x, pins = layers(one, one, two)
    schedule = sched.compile(graph, pins=pins)
    x.set(VALUES)
    schedule.enqueue()
    assert {entry[0] for entry in log} == {"enqueue"}  # devices wait for each other, the host not
    sched.synchronize()
    ran = [entry[1:] for entry in log if entry[0] == "run"]
    for layer in range(N_LAYER):  # what is later in a queue is not needed for what is earlier
        part = [i for i, entry in enumerate(ran) if entry == ("two", "MUL_MAT UNARY")][layer]
        assert ran[:part].count(("one", "MUL_MAT SCALE")) <= layer + 1
    np.testing.assert_allclose(schedule.read(graph.nodes[-1])[0, 0], computed(), rtol=1e-4)


def test_the_host_writes_inputs_before_a_queued_run_has_ended() -> None:
    ctx = Context(no_alloc=True)
    x = input_of(ctx)
    device, host = DeferredDevice(), HostOnly()
    graph = graph_of(y := ops.scale(ctx, ops.rms_norm(ctx, x), 2.0))
    sched = Sched([device, host])
    schedule = sched.compile(graph, pins=dict.fromkeys(graph.nodes, device))
    x.set(VALUES)
    schedule.enqueue()
    schedule.wait_inputs()
    assert len(device.deferred.waiting) == 1  # the copy of the inputs is done, the program is not
    x.set(np.zeros(256))
    sched.synchronize()
    assert np.abs(schedule.read(y)).min() > 0


def test_the_host_side_of_copies_is_in_staging_memory() -> None:
    device, host = DeferredDevice(), HostOnly()
    graph, _, pins = layers(device, device, host)
    schedule = Sched([device, host]).compile(graph, pins=pins)
    copies = [copy for split in schedule.splits for copy in split.copies]
    bufts = [t.buffer.buft for copy in copies for t in (copy.src, copy.dst) if t.buffer]
    assert len(copies) == 1 + 2 * N_LAYER
    assert [buft for buft in bufts if buft.is_host] == [device.staging] * len(copies)


def test_a_result_for_the_cpu_is_copied_right_after_it_is_computed() -> None:
    device, host = DeferredDevice(), HostOnly()
    graph, _, pins = layers(device, device, host)
    schedule = Sched([device, host]).compile(graph, pins=pins)
    for i, step in enumerate(schedule.steps):
        if isinstance(step.work, DeviceCopy) and step.work.dst.name.startswith("cpu#"):
            before = schedule.steps[i - 1].work
            assert isinstance(before, Split) and step.backend == before.backend == 0
            assert step.work.src.name == before.nodes[-1].name
    assert [len(step.after) for step in schedule.steps if step.backend == 1] == [0, *[1] * N_LAYER]


def test_a_result_that_waits_for_its_reader_is_not_computed_much_earlier() -> None:
    """Nodes that only read inputs stay near their readers: their results would take memory."""
    ctx, graph, pins = Context(no_alloc=True), CGraph(), dict[Tensor, Backend]()
    device, host = DeferredDevice(), HostOnly()
    x, y = input_of(ctx), input_of(ctx, name="y")
    cur = x
    for _ in range(12):
        cur = ops.mul_mat(ctx, weight_on(host), cur)
        cur = ops.add(ctx, cur, ops.mul_mat(ctx, weight_on(device), y))
        pins[cur] = device
        graph.build_forward_expand(cur)
    sched = Sched([device, host])
    schedule = sched.compile(graph, pins=pins)
    assert len(schedule.splits) == 3 * 12
    assert sched.buffer_size(device) <= (2 + 4) * x.nbytes  # both inputs; not one for each layer
