"""What a backend is: the protocols that the scheduler, the loader and graph compute talk to.

    backend = init_backend("cpu", n_threads=2)
    buffer = backend.buffer_type().alloc_buffer(1 << 20)
    program = backend.compile(graph)               # addresses are fixed from here on
    program.enqueue()                              # again and again
    backend.queue.synchronize()                    # results are in memory
    backend.close()

A backend computes the nodes of an allocated graph in order, or in any order with the same result.
Nothing above ``pyggml.backend`` knows one by name. Calls from several threads wait for each other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..buffer import HOST
from ..cgraph import CGraph
from ..dtype import GGMLType
from ..errors import Aborted
from ..tensor import Buffer, BufferType, Dims, Tensor
from .trace import RunTrace

_PIECE_BYTES = 16 << 20  # of weights that are written at a time
Bytes = npt.NDArray[np.uint8]
MatrixWriter = Callable[[int, Bytes], None]  # (number of a matrix, its bytes in ggml's layout)


@dataclass(frozen=True)
class Device:
    """Where a backend computes.

    Attributes:
        batch_invariant: whether a token's result has the same bits whatever is computed beside it.
    """

    name: str
    description: str
    kind: Literal["cpu", "gpu", "accel"]
    batch_invariant: bool = True

    @property
    def is_async(self) -> bool:
        """Whether it has a queue, and may still compute when ``Program.enqueue`` has returned."""
        return self.kind != "cpu"


@dataclass(frozen=True)
class WeightUse:
    """A weight as a loader knows it before it has memory.

    Attributes:
        type, ne: of the tensor; quantized types as the file has them.
        ops: names of the ops that read it.
    """

    type: GGMLType
    ne: Dims
    ops: frozenset[str]


@dataclass(frozen=True)
class WeightLayout:
    """A kind of memory that a backend reads a weight from, and the bytes that it takes there."""

    buft: BufferType
    nbytes: int


class StopToken(ctypes.c_int64):  # each run makes one: without Python
    """Stops the run that it was given to, and no other.

        stop = StopToken()
        program.enqueue(stop)                      # raises Aborted after stop.stop()

    ``stop`` may be called from any thread, and does nothing once the run is over.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    @property
    def address(self) -> int:
        """Of an int64 that is 0 until the run is stopped, for compiled code."""
        return ctypes.addressof(self)

    @property
    def stopped(self) -> bool:
        return self.value != 0

    def stop(self) -> None:
        """Stop the run as soon as its backend can."""
        self.value = 1

    def check(self) -> None:
        """Raises: Aborted: it was stopped."""
        if self.value:
            raise Aborted("the compute was aborted")


class DeviceEvent(Protocol):
    """A point in a queue's work."""

    def synchronize(self) -> None:
        """Wait until the work before it is done. Raises: as ``Queue.synchronize``."""
        ...


class Queue(Protocol):
    """The work of one backend, done in the order in which it was enqueued."""

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Enqueue a copy of a tensor's bytes.

        One of the two is in memory of this backend. The other is in memory of the host, or the
        source in that of another device, whose event this queue was told to wait for.
        """
        ...

    def record(self) -> DeviceEvent:
        """The point after all work that is enqueued now."""
        ...

    def wait(self, event: DeviceEvent) -> None:
        """Let later work begin only after an event, of any queue; a device does not block."""
        ...

    def synchronize(self) -> None:
        """Wait for all work. Raises: ComputeError: for any of it."""
        ...


class Program(Protocol):
    """An allocated graph in a backend's own form."""

    def enqueue(self, stop: StopToken | None = None) -> None:
        """Compute all nodes once. A CPU is done on return; a device queues it, after its last run.

        Args:
            stop: of this run. What a device has queued is not stopped: the caller waits for it, and
                looks at the token then.

        Raises:
            ComputeError: a node failed; the message names it.
            Aborted: the run was stopped by ``stop`` or Ctrl-C.
        """
        ...

    def trace(self, repeats: int = 1) -> list[RunTrace]:
        """Run on the inputs of the last run, and tell when each node ran.

        Raises:
            ComputeError: there is no clock, or a node failed. Aborted: as ``enqueue``.
        """
        ...


class Backend(Protocol):
    """Computes graphs on one device.

    A backend derives from this class and gets the methods that have a body here.
    """

    name: str
    queue: Queue

    @property
    def device(self) -> Device: ...

    def memory(self) -> tuple[int, int] | None:
        """Bytes of the device's memory, (free, total); None if that is not known."""
        return None

    def buffer_type(self) -> BufferType:
        """The layout that all kernels of this backend read and write."""
        ...

    def staging_type(self) -> BufferType:
        """Memory of the host that copies to and from this backend are fastest with.

        If it is the scheduler's first device, the CPU's results are in memory of this type.
        """
        return HOST

    def layouts(self, use: WeightUse) -> Sequence[WeightLayout]:
        """The kinds of memory that a weight may be in, the fastest first; none: not supported."""
        tensor = Tensor(use.type, use.ne)
        buft = self.buffer_type()
        return (WeightLayout(buft, buft.alloc_size(tensor)),)

    def set_weights(self, weights: Iterable[tuple[Tensor, Bytes]]) -> Iterator[int]:
        """Write weights, in ggml's layout, into the buffers of ``layouts`` that they are in.

        Yields:
            The bytes that are done, a few megabytes at a time.
        """
        done = 0
        for tensor, data in weights:
            assert tensor.buffer is not None
            whole = tensor.buffer.buft is not self.buffer_type()  # its layout may not be linear
            step = data.nbytes if whole else _PIECE_BYTES
            for start in range(0, data.nbytes, max(step, 1)):
                piece = data[start : start + step]
                tensor.buffer.set_tensor(tensor, piece, start)
                done += piece.nbytes
                yield done

    def matrix_writer(self, weight: Tensor) -> MatrixWriter:
        """A function that writes one matrix of a weight [k, m, n] of ``layouts``.

        Any thread may call it, also while a program runs that does not read that matrix.
        """
        buffer, n_bytes = weight.buffer, weight.nb[2]
        assert buffer is not None
        return lambda matrix, data: buffer.set_tensor(weight, data, matrix * n_bytes)

    def work_bytes(self, parts: Sequence[CGraph]) -> int:
        """Bytes that kernels need in the device's memory beside tensors, to run these graphs.

        Graphs of the same nodes with fewer tokens need no more. Their tensors may be without
        memory: this is for plans.
        """
        return 0

    def supports_buft(self, buft: BufferType) -> bool:
        """Whether kernels of this backend read and write buffers of that type where they are."""
        ...

    def supports_op(self, node: Tensor) -> bool:
        """Whether this backend computes a node of this op with these types and strides."""
        ...

    def compile(
        self, graph: CGraph, *, n_threads: int | None = None, interruptible: bool = True
    ) -> Program:
        """Prepare an allocated graph, to run it many times.

        Args:
            n_threads: of this program; None for the backend's own. Devices without threads ignore
                it.
            interruptible: whether Ctrl-C may stop its runs in the middle.

        Raises:
            UnsupportedOp: a node that has no kernel here.
        """
        ...

    def prepare(self, graph: CGraph) -> None:
        """Compile the kernels of an allocated graph, so that ``compile`` finds them.

        By default it is compiled as a whole.

        Raises:
            UnsupportedOp: as ``compile``.
        """
        self.compile(graph)

    def graph_compute(self, graph: CGraph, stop: StopToken | None = None) -> None:
        """Compile a graph, run it once and wait for the results; ``stop`` stops it.

        Raises:
            UnsupportedOp: as ``compile``. ComputeError, Aborted: as ``Program.enqueue``.
        """
        self.compile(graph).enqueue(stop)
        self.queue.synchronize()
        if stop is not None:
            stop.check()

    def report(self) -> str:
        """Lines for ``pyllama info``: what was chosen for this machine, and why."""
        return ""

    def close(self) -> None:
        """Release threads and memory; a second call does nothing."""
        return None


class HostEvent:
    """An event of a queue that is done whenever it returns."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class HostQueue:
    """The queue of a backend that computes at once, in memory of the host."""

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy now, gaps between rows included."""
        copy_bytes(source, target)

    def record(self) -> DeviceEvent:
        """An event that has happened."""
        return HostEvent()

    def wait(self, event: DeviceEvent) -> None:
        """Block until the event."""
        event.synchronize()

    def synchronize(self) -> None:
        """Nothing is left to be done."""


def copy_bytes(source: Tensor, target: Tensor) -> None:
    """Copy a tensor's bytes through the host, those between its rows included.

    Shape:
        Both have the same type, ne and nb.
    """
    if not source.is_contiguous():
        source, target = source.span(), target.span()
    buffers: tuple[Buffer | None, Buffer | None] = source.buffer, target.buffer
    assert buffers[0] is not None and buffers[1] is not None
    buffers[1].set_tensor(target, buffers[0].get_tensor(source))


class BackendFactory(Protocol):
    """Starts a backend: what ``register_backend`` and the entry points take."""

    def __call__(self, *, n_threads: int | None = None) -> Backend:
        """``n_threads`` None is the backend's own choice; backends without threads ignore it."""
        ...
