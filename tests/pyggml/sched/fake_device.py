"""A second device simulated on the CPU: memory of its own, and only some of the ops.

    fake = FakeDevice(ops={"ADD", "MUL_MAT"}, deferred=True)
    sched = Sched([fake, HostOnly(), init_backend("reference")])

Both refuse to run a node with a tensor in foreign memory, so a missing copy is an
error. A deferred device runs nothing before ``synchronize``, so a missing wait is a wrong result.
Backends that get the same list as ``log`` append what happens: ``("enqueue", "deferred", "ADD")``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.interface import (
    Backend,
    Device,
    DeviceEvent,
    HostQueue,
    Program,
    Queue,
    StopToken,
    WeightLayout,
    WeightUse,
    copy_bytes,
)
from pyggml.backend.trace import RunTrace
from pyggml.buffer import ALIGNMENT, HostBufferType, zeroed
from pyggml.cgraph import CGraph
from pyggml.errors import ShapeError
from pyggml.tensor import BufferType, Tensor

Bytes = npt.NDArray[np.uint8]
Log = list[tuple[str, ...]]  # what happens, the backend, and ops or tensors


class FakeBuffer:
    """Memory with an address that the host must not use; it starts as NaN bytes."""

    mem = None

    def __init__(self, size: int, buft: FakeBufferType) -> None:
        self._memory = zeroed(size)
        self._memory[:] = 0xFF
        self.buft = buft
        self.base = int(self._memory.ctypes.data)
        self.size = size

    def set_tensor(self, tensor: Tensor, data: Bytes, offset: int = 0) -> None:
        self._bytes(tensor)[offset : offset + data.nbytes] = data

    def get_tensor(self, tensor: Tensor, offset: int = 0, size: int | None = None) -> Bytes:
        return self._bytes(tensor)[offset : None if size is None else offset + size].copy()

    def lock(self) -> str:
        return ""

    def _bytes(self, tensor: Tensor) -> Bytes:
        if tensor.buffer is not self or not tensor.is_contiguous():
            raise ShapeError(f"'{tensor.name}' is not here, or has gaps")
        start = tensor.data - self.base
        return self._memory[start : start + tensor.nbytes]


class FakeBufferType:
    """Counts its buffers."""

    name = "FAKE"
    alignment = ALIGNMENT
    is_host = False

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def alloc_buffer(self, size: int) -> FakeBuffer:
        self.sizes.append(size)
        return FakeBuffer(size, self)

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes


class StagingType(HostBufferType):
    """Memory of the host, as a GPU's pinned memory."""

    name = "FAKE_Host"


class _Logged:
    """A program that logs its runs."""

    def __init__(self, program: Program, log: Log, backend: str, ops: str) -> None:
        self._program, self._log = program, log
        self.entry = backend, ops

    def enqueue(self, stop: StopToken | None = None) -> None:
        self._log.append(("run", *self.entry))
        self._program.enqueue(stop)

    def trace(self, repeats: int = 1) -> list[RunTrace]:
        return self._program.trace(repeats)


class _Checked(Backend):
    """The CPU backend, but every tensor of a node must be in memory that it supports."""

    def __init__(self, ops: Collection[str] | None = None, n_threads: int = 1) -> None:
        self.cpu = CpuBackend(n_threads)
        self.ops = ops
        self.queue: Queue = self.cpu.queue
        self.compiled: list[list[str]] = []  # the ops of each graph
        self.log: Log = []

    def supports_buft(self, buft: BufferType) -> bool:
        return self.cpu.supports_buft(buft)

    def supports_op(self, node: Tensor) -> bool:
        assert node.op is not None
        return (self.ops is None or node.op.name in self.ops) and self.cpu.supports_op(node)

    def compile(
        self, graph: CGraph, *, n_threads: int | None = None, interruptible: bool = True
    ) -> _Logged:
        for node in graph:
            assert node.op is not None and self.supports_op(node)
            for tensor in (node, *node.src):
                if tensor is not None and tensor.nelements:
                    assert tensor.buffer is not None, (node, tensor)
                    assert self.supports_buft(tensor.buffer.buft), (node, tensor)
        self.compiled.append([node.op.name for node in graph if node.op])
        program = self.cpu.compile(graph, n_threads=n_threads, interruptible=interruptible)
        return _Logged(program, self.log, self.name, " ".join(self.compiled[-1]))

    def close(self) -> None:
        self.cpu.close()


class HostOnly(_Checked):
    """The CPU backend, which never sees the fake device's memory."""

    name = "cpu"

    def __init__(
        self, ops: Collection[str] | None = None, n_threads: int = 1, *, log: Log | None = None
    ) -> None:
        super().__init__(ops, n_threads)
        self.log = self.log if log is None else log

    @property
    def device(self) -> Device:
        return Device("CPU", "checked", "cpu")

    def buffer_type(self) -> BufferType:
        return self.cpu.buffer_type()

    def layouts(self, use: WeightUse) -> Sequence[WeightLayout]:
        return self.cpu.layouts(use)

    def set_weights(self, weights: Iterable[tuple[Tensor, Bytes]]) -> Iterator[int]:
        return self.cpu.set_weights(weights)


class FakeDevice(_Checked):
    """A device with memory of its own; see the module."""

    name = "fake"

    @property
    def device(self) -> Device:
        return Device("FAKE", "the CPU in disguise", "gpu")

    def __init__(
        self,
        ops: Collection[str] | None = None,
        n_threads: int = 1,
        *,
        name: str = "fake",
        total_bytes: int | None = None,
    ) -> None:
        super().__init__(ops, n_threads)
        self.name = name
        self.buft = FakeBufferType()
        self.total_bytes = total_bytes
        self.staging: HostBufferType = StagingType()

    def memory(self) -> tuple[int, int] | None:
        """What no buffer has taken, also of those that are freed."""
        if self.total_bytes is None:
            return None
        return max(0, self.total_bytes - sum(self.buft.sizes)), self.total_bytes

    def buffer_type(self) -> FakeBufferType:
        return self.buft

    def staging_type(self) -> HostBufferType:
        return self.staging

    def supports_buft(self, buft: BufferType) -> bool:
        return buft is self.buft

    def supports_op(self, node: Tensor) -> bool:
        assert node.op is not None
        return node.op.name != "MAP_CUSTOM" and super().supports_op(node)


class _Event:
    """A position in a queue's work."""

    def __init__(self, queue: _DeferredQueue, n: int) -> None:
        self._queue, self._n = queue, n

    def synchronize(self) -> None:
        self._queue.run_until(self._n)


class _DeferredQueue(HostQueue):
    """Work that runs when a caller waits for it."""

    def __init__(self, name: str, log: Log) -> None:
        self.waiting: list[Callable[[], None]] = []
        self._n_done = 0
        self._name, self._log = name, log

    def copy(self, source: Tensor, target: Tensor) -> None:
        self.waiting.append(lambda: copy_bytes(source, target))

    def record(self) -> DeviceEvent:
        return _Event(self, self._n_done + len(self.waiting))

    def wait(self, event: DeviceEvent) -> None:
        self.waiting.append(event.synchronize)

    def synchronize(self) -> None:
        self._log.append(("synchronize", self._name))
        self.run_until(self._n_done + len(self.waiting))

    def run_until(self, n: int) -> None:
        try:
            while self._n_done < n and self.waiting:
                self._n_done += 1
                self.waiting.pop(0)()
        except BaseException:
            self._n_done += len(self.waiting)
            self.waiting.clear()
            raise


class _DeferredProgram(_Logged):
    def __init__(self, program: _Logged, queue: _DeferredQueue) -> None:
        super().__init__(program._program, program._log, *program.entry)
        self._queue = queue

    def enqueue(self, stop: StopToken | None = None) -> None:
        """Like a device, which does not interrupt what it was given."""
        self._log.append(("enqueue", *self.entry))
        self._queue.waiting.append(super().enqueue)


class DeferredDevice(FakeDevice):
    """A fake device that computes as late as it may."""

    def __init__(
        self,
        ops: Collection[str] | None = None,
        n_threads: int = 1,
        *,
        name: str = "deferred",
        total_bytes: int | None = None,
        log: Log | None = None,
    ) -> None:
        super().__init__(ops, n_threads, name=name, total_bytes=total_bytes)
        self.log = self.log if log is None else log
        self.queue = self.deferred = _DeferredQueue(name, self.log)

    def compile(
        self, graph: CGraph, *, n_threads: int | None = None, interruptible: bool = True
    ) -> _DeferredProgram:
        return _DeferredProgram(super().compile(graph), self.deferred)
