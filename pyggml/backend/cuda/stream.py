"""A device's stream as a ``Queue``: copies, events, errors of kernels, functions and work memory.

queue = StreamQueue(driver, buft, compile_cubin)
queue.copy(source, target)                     # in order with the programs of the device
queue.synchronize()                            # raises what failed
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ...cgraph import CGraph
from ...errors import ComputeError, PyggmlError
from ...tensor import Tensor
from ..interface import DeviceEvent, copy_bytes
from .buffer import CudaBuffer, CudaType, PinnedBuffer, PinnedType
from .driver import Driver
from .kernel import GpuKernel, KernelImage

_MAX_CODE = (1 << 31) - 1
WORK_BYTES = 4 << 20, 1 << 16  # of the regions of work memory, at least


def work_size(region: int, n_bytes: int) -> int:
    """Bytes of a region of work memory in which so many are needed."""
    return max(n_bytes, WORK_BYTES[region])


class StreamEvent:
    """A point in a stream's work."""

    def __init__(self, queue: StreamQueue, handle: Any) -> None:
        self.queue, self.handle = queue, handle

    def synchronize(self) -> None:
        """Wait until the work before it is done. Raises: ComputeError."""
        self.queue.driver.synchronize_event(self.handle)
        self.queue.check()


class StreamQueue:
    """The work of one device, in the order in which it was enqueued.

    Attributes:
        error: the host's view of the int32 that kernels write for an index out of range.
        n_moves: how often work memory has got another address.
    """

    def __init__(
        self,
        driver: Driver,
        buft: CudaType,
        compile: Callable[[GpuKernel, tuple[int, int]], KernelImage],
    ) -> None:
        self.driver = driver
        self.stream = driver.create_stream()
        self._compile, self._buft = compile, buft
        self._functions: dict[GpuKernel, Any] = {}
        weakref.finalize(self, _end, driver, self.stream, self._functions).atexit = False
        self._work: list[CudaBuffer | None] = [None, None]
        self.n_moves = 0
        self._mark = PinnedBuffer(driver, 64, PinnedType(driver))
        self.error = self._mark.mem[:4].view(np.int32)
        self.error[0] = 0
        self._graphs: WeakValueDictionary[int, CGraph] = WeakValueDictionary()  # by first code
        self._next_code = 1

    @property
    def error_address(self) -> int:
        """Where kernels write the number of a node that has an index out of range."""
        return self._mark.base

    def function(self, kernel: GpuKernel) -> Any:
        """A kernel, compiled for this device and loaded."""
        if kernel not in self._functions:
            image = self._compile(kernel, self.driver.info.cc)
            self._functions[kernel] = self.driver.load(image)
        return self._functions[kernel]

    def work(self, region: int, n_bytes: int) -> int:
        """The address of memory for work, which all programs of this queue share.

        Programs run in order. If it must grow, it is freed first: see ``n_moves``.

        Raises:
            AllocError: no memory.
        """
        known = self._work[region]
        if known is None or known.size < n_bytes:
            self._work[region] = known = None
            self.n_moves += 1
            known = CudaBuffer(self.driver, work_size(region, n_bytes), self._buft)
            self._work[region] = known
        return known.base

    def close(self) -> None:
        """Wait for all work, and free code and work memory; a later program would load them again.

        Raises:
            ComputeError: as ``synchronize``.
        """
        try:
            self.synchronize()
        finally:
            self._functions.clear()
            self._work = [None, None]
            self.n_moves += 1

    def codes(self, graph: CGraph) -> int:
        """The error code of a graph's first node; the codes of the others follow."""
        n = max(1, len(graph))
        first = self._next_code if self._next_code + n <= _MAX_CODE else 1
        self._next_code = first + n
        self._graphs[first] = graph
        return first

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Enqueue a copy; one of the two is in memory of this device."""
        if not source.is_contiguous():
            source, target = source.span(), target.span()
        here, there = source.buffer, target.buffer
        assert here is not None and there is not None
        driver, n = self.driver, source.nbytes
        if isinstance(here, CudaBuffer) and isinstance(there, CudaBuffer):
            driver.copy_on(target.data, source.data, n, self.stream)
        elif isinstance(there, CudaBuffer) and here.buft.is_host:
            driver.copy_in(target.data, source.data, n, self.stream)
        elif isinstance(here, CudaBuffer) and there.buft.is_host:
            driver.copy_out(target.data, source.data, n, self.stream)
        else:
            self.synchronize()
            copy_bytes(source, target)

    def record(self) -> DeviceEvent:
        return StreamEvent(self, self.driver.record(self.stream))

    def wait(self, event: DeviceEvent) -> None:
        """Let later work begin only after an event."""
        if isinstance(event, StreamEvent):
            self.driver.wait(self.stream, event.handle)
        else:
            event.synchronize()

    def synchronize(self) -> None:
        """Wait for all work. Raises: ComputeError."""
        self.driver.synchronize(self.stream)
        self.check()

    def check(self) -> None:
        """Raise what failed in work that is done. Raises: ComputeError."""
        number = int(self.error[0])
        if number:
            self.error[0] = 0
            what = "an index is out of range" if number > 0 else "a score is not a number"
            raise ComputeError(f"{self.driver.info.name}: {self._name(abs(number))}: {what}")

    def _name(self, code: int) -> str:
        for first, graph in list(self._graphs.items()):
            if first <= code < first + len(graph):
                node = graph.nodes[code - first]
                return f"'{node.name}' = {node.op.name if node.op else 'an op'}"
        return "a node of a graph that is gone"


def _end(driver: Driver, stream: Any, functions: dict[GpuKernel, Any]) -> None:
    """Wait until no kernel of a queue runs, then let its code be unloaded."""
    with contextlib.suppress(PyggmlError):
        driver.synchronize(stream)
    functions.clear()
