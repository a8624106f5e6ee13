"""``Sched.abort``: stops the runs in flight, and no others, before or after."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pyggml as ops
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.interface import Backend, StopToken
from pyggml.backend.reference.backend import ReferenceBackend
from pyggml.context import Context
from pyggml.errors import Aborted, ComputeError
from pyggml.sched import Sched, Schedule
from pyggml.tensor import Tensor

from .fake_device import DeferredDevice, HostOnly
from .graphs import chain, graph_of, input_of

Start = Callable[[], list[Backend]]
HOSTS: dict[str, Start] = {
    "cpu": lambda: [CpuBackend(2)],
    "reference": lambda: [ReferenceBackend()],
    "two": lambda: [CpuBackend(1), ReferenceBackend()],
}
DEVICES: dict[str, Start] = {
    "one": lambda: [DeferredDevice(), HostOnly()],
    "two": lambda: [DeferredDevice(name="one"), DeferredDevice(name="two"), HostOnly()],
}


def times_four(sched: Sched, during: Callable[[], None]) -> tuple[Schedule, Tensor]:
    """A schedule that calls ``during`` between two nodes, on the last backend."""
    ctx = Context(no_alloc=True)
    x = input_of(ctx)

    def call(dst: Any, src: Any) -> None:
        during()
        dst[...] = src

    y = ops.scale(ctx, ops.map_custom(ctx, call, ops.scale(ctx, x, 2.0)), 2.0)
    made = sched.compile(graph_of(y), pins=dict.fromkeys(graph_of(y).nodes, sched.backends[-1]))
    x.set(np.ones(256))
    return made, y


def on_devices(sched: Sched) -> tuple[Schedule, Tensor]:
    """A schedule with a node on each device, one after the other."""
    _, x, graph, nodes = chain("F" * (len(sched.backends) - 1))
    made = sched.compile(graph, pins=dict(zip(nodes, sched.backends[:-1], strict=True)))
    x.set(np.ones(256))
    return made, nodes[-1]


@pytest.mark.parametrize("kind", HOSTS)
def test_hosts(kind: str) -> None:
    sched = Sched(HOSTS[kind]())
    calls = [lambda: None, sched.abort, lambda: None, sched.abort, lambda: None]
    given = iter(calls)
    schedule, y = times_four(sched, lambda: next(given)())
    for call in calls:
        sched.abort()  # nothing runs
        if call == sched.abort:
            with pytest.raises(Aborted):
                schedule.run()
        else:
            schedule.run()
            assert (schedule.read(y) == 4).all()


@pytest.mark.parametrize("kind", DEVICES)
def test_devices(kind: str) -> None:
    """A device does not look at the abort, so that it cannot take it back: the caller does."""
    sched = Sched(DEVICES[kind]())
    schedule, y = on_devices(sched)
    for _ in range(2):
        sched.abort()
        schedule.run()
        sched.abort()
        assert (schedule.read(y) == 1.5 ** (len(sched.backends) - 1)).all()
        for n_runs in (1, 2):
            for _ in range(n_runs):
                schedule.enqueue()
            sched.abort()
            with pytest.raises(Aborted):
                sched.synchronize()
            sched.synchronize()  # once for all


def test_an_abort_between_steps_ends_the_run() -> None:
    device, host = DeferredDevice(), HostOnly()
    sched = Sched([device, host])
    ctx = Context(no_alloc=True)
    x, calls = input_of(ctx), []

    def call(dst: Any, src: Any) -> None:
        calls.append(len(device.compiled))
        sched.abort()

    graph = graph_of(y := ops.scale(ctx, ops.map_custom(ctx, call, x), 2.0))
    schedule = sched.compile(graph, pins={y: device})
    x.set(np.ones(256))
    device.log.clear()
    with pytest.raises(Aborted):
        schedule.run()
    assert calls and not [entry for entry in device.log if entry[0] == "enqueue"]


def test_a_callback_stops_its_run() -> None:
    sched = Sched([CpuBackend(1)])
    sched.set_eval_callback(lambda node, ask: sched.abort() is None)
    _, x, graph, _ = chain("FF")
    sched.alloc_graph(graph)
    x.set(np.ones(256))
    with pytest.raises(Aborted):
        sched.graph_compute(graph)
    sched.set_eval_callback(None)
    sched.graph_compute(graph)


def test_other_contexts_go_on() -> None:
    """They share the backend and the process's threads."""
    cpu, threads = CpuBackend(1), []
    one, two = Sched([cpu]), Sched([cpu])
    other, result = times_four(two, lambda: None)

    def during() -> None:
        two.abort()  # nothing of it runs
        threads.append(threading.Thread(target=other.run))
        threads[0].start()  # waits for the pool
        one.abort()

    schedule, _ = times_four(one, during)
    with pytest.raises(Aborted):
        schedule.run()
    threads[0].join()
    assert (other.read(result) == 4).all()


def test_a_compute_without_a_scheduler() -> None:
    for backend in (CpuBackend(1), ReferenceBackend()):
        ctx, stop = Context(), StopToken()
        x = ctx.from_numpy(np.ones(8, np.float32))
        y = ops.map_custom(ctx, lambda dst, src, stop=stop: stop.stop(), x)
        with pytest.raises(Aborted):
            backend.graph_compute(graph_of(ops.scale(ctx, y, 2.0)), stop)
        backend.graph_compute(graph_of(z := ops.scale(ctx, x, 2.0)), StopToken())
        assert (z.numpy() == 2).all()


def test_errors_of_all_queues_are_raised_once() -> None:
    """One of them used to be left for the next run."""
    sched = Sched(DEVICES["two"]())
    schedule, _ = on_devices(sched)
    schedule.run()

    def fail() -> None:
        raise ComputeError("on purpose")

    schedule.enqueue()
    for device in sched.backends[:2]:
        assert isinstance(device, DeferredDevice)
        device.deferred.waiting[:] = [fail]
    with pytest.raises(ComputeError, match="on purpose"):
        sched.synchronize()
    schedule.run()


def test_a_schedule_of_the_cpu_waits_for_others() -> None:
    sched = Sched(DEVICES["one"]())
    schedule, _ = on_devices(sched)
    host, y = times_four(sched, lambda: None)
    schedule.enqueue()
    host.run()
    device = sched.backends[0]
    assert isinstance(device, DeferredDevice) and not device.deferred.waiting
    assert (host.read(y) == 4).all()
