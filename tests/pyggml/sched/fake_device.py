"""A second device made of the CPU: memory that nobody else can reach, and only some of the ops.

    fake = FakeDevice(ops={"ADD", "MUL_MAT"}, deferred=True)
    sched = Sched([fake, HostOnly(), init_backend("reference")])

Both refuse to run a node with a tensor in memory that is not theirs, so a missing copy is an
error. A deferred device runs nothing before ``synchronize``, so a missing wait is a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt

from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.cpu.program import Program
from pyggml.backend.interface import Device
from pyggml.buffer import ALIGNMENT, BufferType, zeroed
from pyggml.cgraph import CGraph
from pyggml.errors import ShapeError
from pyggml.tensor import Tensor

Bytes = npt.NDArray[np.uint8]


class FakeBuffer:
    """Memory with an address that the host must not use; it starts as NaN bytes."""

    mem = None

    def __init__(self, size: int, buft: FakeBufferType) -> None:
        self._memory = zeroed(size)
        self._memory[:] = 0xFF
        self.buft = buft
        self.base = int(self._memory.ctypes.data)
        self.size = size

    def set_tensor(self, tensor: Tensor, data: Bytes) -> None:
        self._bytes(tensor)[:] = data

    def get_tensor(self, tensor: Tensor) -> Bytes:
        return self._bytes(tensor).copy()

    def _bytes(self, tensor: Tensor) -> Bytes:
        if tensor.buffer is not self or not tensor.is_contiguous():
            raise ShapeError(f"'{tensor.name}' is not here, or has gaps")
        start = tensor.data - self.base
        return self._memory[start : start + tensor.nbytes]


class FakeBufferType:
    """Counts its buffers."""

    name = "FAKE"
    alignment = ALIGNMENT

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def alloc_buffer(self, size: int) -> FakeBuffer:
        self.sizes.append(size)
        return FakeBuffer(size, self)

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes


class _Checked:
    """The CPU backend, but every tensor of a node must be in memory that it supports."""

    def __init__(self, ops: Collection[str] | None = None, n_threads: int = 1) -> None:
        self.cpu = CpuBackend(n_threads)
        self.ops = ops
        self.compiled: list[list[str]] = []  # the ops of each graph

    def supports_buft(self, buft: BufferType) -> bool:
        return self.cpu.supports_buft(buft)

    def supports_op(self, node: Tensor) -> bool:
        assert node.op is not None
        return (self.ops is None or node.op.name in self.ops) and self.cpu.supports_op(node)

    def compile(self, graph: CGraph) -> Program:
        for node in graph:
            assert node.op is not None and self.supports_op(node)
            for tensor in (node, *node.src):
                if tensor is not None and tensor.nelements:
                    assert tensor.buffer is not None, (node, tensor)
                    assert self.supports_buft(tensor.buffer.buft), (node, tensor)
        self.compiled.append([node.op.name for node in graph if node.op])
        return self.cpu.compile(graph)

    def run(self, program: Program) -> None:
        self.cpu.run(program)

    def graph_compute(self, graph: CGraph) -> None:
        raise AssertionError("the scheduler should compile")

    def close(self) -> None:
        self.cpu.close()


class HostOnly(_Checked):
    """The CPU backend, which never sees the fake device's memory."""

    name = "cpu"
    device = Device("CPU", "checked", "cpu")

    def buffer_type(self) -> BufferType:
        return self.cpu.buffer_type()


class FakeDevice(_Checked):
    """A device with memory of its own; see the module."""

    name = "fake"
    device = Device("FAKE", "the CPU in disguise", "gpu")

    def __init__(
        self, ops: Collection[str] | None = None, n_threads: int = 1, *, name: str = "fake"
    ) -> None:
        super().__init__(ops, n_threads)
        self.name = name
        self.buft = FakeBufferType()

    def buffer_type(self) -> FakeBufferType:
        return self.buft

    def supports_buft(self, buft: BufferType) -> bool:
        return buft is self.buft

    def supports_op(self, node: Tensor) -> bool:
        assert node.op is not None
        return node.op.name != "MAP_CUSTOM" and super().supports_op(node)


class DeferredDevice(FakeDevice):
    """A fake device that computes as late as it may."""

    def __init__(
        self, ops: Collection[str] | None = None, n_threads: int = 1, *, name: str = "deferred"
    ) -> None:
        super().__init__(ops, n_threads, name=name)
        self.queue: list[Callable[[], None]] = []

    def run(self, program: Program) -> None:
        self.queue.append(lambda: self.cpu.run(program))

    def synchronize(self) -> None:
        queue, self.queue = self.queue, []
        for work in queue:
            work()
