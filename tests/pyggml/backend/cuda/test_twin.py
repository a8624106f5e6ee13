"""The driver's twin: order, memory, graphs, and missing waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("greenlet")

from pyggml.backend.cuda.driver import Driver, Grid
from pyggml.errors import AllocError, ComputeError

from . import samples
from .memory import KernelFault
from .twin import TwinDriver, simulator_image


class Device:
    """A twin with a stream, and arrays on it."""

    def __init__(self, **options: Any) -> None:
        self.twin = TwinDriver(**options)
        self.driver: Driver = self.twin
        self.stream = self.driver.create_stream()
        self.scale = self.driver.load(simulator_image(samples.scale, (8, 0)))

    def put(self, x: Any) -> int:
        address = self.driver.alloc(x.nbytes)
        self.driver.copy_in(address, x.ctypes.data, x.nbytes, self.stream)
        return address

    def times(self, x: int, y: int, n: int, factor: float) -> Any:
        return self.driver.pack(self.scale, Grid(1), threads=64, arguments=(x, y, n, factor))

    def get(self, address: int, n: int, *, wait: bool = True) -> Any:
        out = np.empty(n, np.float32)
        self.driver.copy_out(out.ctypes.data, address, out.nbytes, self.stream)
        if wait:
            self.driver.synchronize(self.stream)
        return out


X = np.arange(8, dtype=np.float32)


def test_nothing_runs_before_a_wait() -> None:
    device = Device()
    x = device.put(X)
    y = device.driver.alloc(X.nbytes)
    device.driver.launch([device.times(x, y, 8, 2.0)], device.stream)
    out = device.get(y, 8, wait=False)
    assert np.isnan(out).all() and not device.twin.counts.launches
    device.driver.synchronize(device.stream)
    np.testing.assert_array_equal(out, 2 * X)
    assert device.twin.counts.launches == {"sample_scale": 1}
    assert (device.twin.counts.copies_in, device.twin.counts.copies_out) == (1, 1)


def test_streams_are_ordered_by_events_alone() -> None:
    device = Device()
    driver, other = device.driver, device.driver.create_stream()
    x, y = device.put(X), driver.alloc(X.nbytes)
    first = driver.record(device.stream)
    out = np.empty_like(X)
    driver.copy_out(out.ctypes.data, x, out.nbytes, other)
    driver.synchronize(other)
    assert np.isnan(out).all()  # the other stream did not wait for the copy
    driver.wait(other, first)
    driver.launch([device.times(x, y, 8, 3.0)], other)
    last = driver.record(other)
    driver.copy_out(out.ctypes.data, y, out.nbytes, other)
    with pytest.raises(ComputeError, match="has not happened"):
        driver.elapsed_us(first, last)
    driver.synchronize_event(last)
    assert np.isnan(out).all() and driver.elapsed_us(first, last) > 0
    driver.synchronize(other)
    np.testing.assert_array_equal(out, 3 * X)


def test_graphs_use_the_values_of_their_replay() -> None:
    device = Device()
    x, y = device.put(X), device.driver.alloc(X.nbytes)
    launches = [device.times(x, y, 8, 2.0), device.times(y, y, 8, 5.0)]
    graph = device.driver.capture(launches, device.stream)
    device.driver.synchronize(device.stream)
    assert not device.twin.counts.launches
    for values in (X, X + 1):
        device.driver.copy_in(x, values.ctypes.data, X.nbytes, device.stream)
        device.driver.replay(graph, device.stream)
        np.testing.assert_array_equal(device.get(y, 8), 10 * values)
    assert device.twin.counts.graphs == 2 and device.twin.counts.launches["sample_scale"] == 4


def test_copies_and_fills() -> None:
    """Pinned memory is read when the copy runs, other memory when it is enqueued; peers."""
    one, two = Device(), Device()
    pinned = one.twin.spaces.find(one.driver.alloc_host(X.nbytes), 1)
    plain = X.copy()
    a, b = one.driver.alloc(X.nbytes), one.driver.alloc(X.nbytes)
    pinned.view(np.float32)[:] = X
    one.driver.copy_in(a, pinned.base, X.nbytes, one.stream)
    one.driver.copy_in(b, plain.ctypes.data, X.nbytes, one.stream)
    pinned.view(np.float32)[:] = plain[:] = -1
    assert (one.get(a, 8) == -1).all()
    np.testing.assert_array_equal(one.get(b, 8), X)

    c = two.driver.alloc(2 * X.nbytes)
    two.driver.fill(c, 0, 2 * X.nbytes, two.stream)
    two.driver.copy_on(c + X.nbytes, b, X.nbytes, two.stream)
    np.testing.assert_array_equal(two.get(c, 16), np.r_[np.zeros(8), X])

    one.driver.launch([one.times(b, pinned.base, 8, 2.0)], one.stream)  # a kernel may write there
    one.driver.synchronize(one.stream)
    np.testing.assert_array_equal(pinned.view(np.float32)[:8], 2 * X)
    one.driver.free_host(pinned.base)


def test_memory_is_limited_and_poisoned() -> None:
    device = Device(limit=1000)
    x = device.driver.alloc(600)
    assert x % 256 == 0 and device.driver.memory() == (400, 1000)
    with pytest.raises(AllocError, match="401 bytes asked, 400 of 1000 are free"):
        device.driver.alloc(401)
    assert np.isnan(device.get(x, 150)).all()
    device.driver.free(x)
    assert device.driver.memory() == (1000, 1000)
    with pytest.raises(KernelFault, match="not the address of an allocation"):
        device.driver.free(x)
    device.driver.fill(x, 0, 4, device.stream)
    with pytest.raises(KernelFault, match="byte 0 of 600 that were freed"):
        device.driver.synchronize(device.stream)


def test_writes_next_to_an_allocation_are_found() -> None:
    device = Device()
    x = device.driver.alloc(100)
    space = device.twin.spaces.find(x, 100)
    space.guards[1][0] = 0
    with pytest.raises(KernelFault, match="next to an allocation of 100"):
        device.driver.synchronize(device.stream)
    device.driver.copy_in(x + 90, X.ctypes.data, 16, device.stream)
    with pytest.raises(KernelFault, match="byte 90 of an allocation of 100"):
        device.driver.synchronize(device.stream)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threads": 257}, "257 threads, it has at most 256"),
        ({"grid": Grid(0)}, "Grid"),
        ({"grid": Grid(1, 1 << 16)}, "Grid"),
        ({"arguments": (1, 2, 3)}, "3 arguments"),
        ({"arguments": (1, 2, 1 << 31, 0.5)}, "does not fit i32"),
        ({"arguments": (1, 2, 3.5, 0.5)}, "3.5 for i32"),
        ({"shared_bytes": 1 << 20}, "shared memory"),
    ],
)
def test_launches_are_checked(changes: dict[str, Any], message: str) -> None:
    device = Device()
    options: dict[str, Any] = {"grid": Grid(1), "threads": 64, "arguments": (256, 512, 8, 0.5)}
    options |= changes
    grid = options.pop("grid")
    with pytest.raises(ComputeError, match=message):
        device.driver.pack(device.scale, grid, **options)


def test_a_fault_ends_the_work_of_its_stream() -> None:
    device = Device()
    x = device.put(X)
    device.driver.launch([device.times(x, x, 9, 2.0)], device.stream)
    with pytest.raises(KernelFault, match="thread 8"):
        device.driver.synchronize(device.stream)
    np.testing.assert_array_equal(device.get(x, 8), 2 * X)
