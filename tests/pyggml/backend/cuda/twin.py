"""A GPU's driver without a GPU: memory of the host, and an engine that runs kernels in Python.

    twin = TwinDriver(cc=(8, 0), limit=1 << 28)
    function = twin.load(ptx_image(KERNELS["scale_f32"], (8, 0)))           # the emulator
    function = twin.load(simulator_image(KERNELS["scale_f32"], (8, 0)))     # the kernel's Python
    twin.counts.launches["scale_f32"]

A ``driver.Driver``; the two functions that make images may stand for ``compile_cubin``. Work of a
stream runs when a caller waits for it, so a missing wait is a wrong result: memory of the host that
a copy will fill holds NaNs until then. Each wait checks the bytes next to all allocations. A copy
from pinned memory reads it when it runs, one from other memory when it is enqueued. Memory of the
host that a copy fills must exist until the copy has run.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from threading import RLock
from weakref import WeakSet

from pyggml.backend.cuda.driver import DeviceInfo, Grid
from pyggml.backend.cuda.kernel import GpuKernel, KernelImage
from pyggml.backend.cuda.numba_compiler import compile_ptx
from pyggml.errors import AllocError, ComputeError

from .memory import POISON, KernelFault, Memory
from .ptx import Program
from .simulator import SimulatorImage, simulate, simulator_image

__all__ = ["Counts", "TwinDriver", "ptx_image", "simulator_image"]

_lock = RLock()  # of all twins, which may wait for each other
_twins: WeakSet[TwinDriver] = WeakSet()
_reads: list[tuple[int, int]] = []  # pinned bytes that queued copies of any twin will read
_n_running = 0  # streams that run: one may wait for another
_delayed: list[Callable[[], None]] = []  # what garbage collection freed while a stream ran

Engine = Callable[[Memory, Grid, int, Sequence[float], int], None]
_LIMITS = {"i32": (-(1 << 31), 1 << 31), "i64": (-(1 << 63), 1 << 63), "u32": (0, 1 << 32)}


@dataclass
class Counts:
    """What a twin was told to do, counted when it runs.

    Attributes:
        launches: by the name of the kernel, those of graphs too.
    """

    launches: Counter[str] = field(default_factory=Counter)
    graphs: int = 0
    copies_in: int = 0
    copies_out: int = 0
    copies_on: int = 0
    fills: int = 0
    allocs: int = 0


class Stream:
    """Work in order, run when somebody waits for it."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.n_done = 0

    @property
    def end(self) -> int:
        return self.n_done + len(self.work)

    def run_until(self, n: int) -> None:
        global _n_running
        _n_running += 1
        try:
            while self.n_done < n and self.work:
                self.n_done += 1
                self.work.pop(0)()
        except BaseException:
            self.n_done += len(self.work)
            self.work.clear()
            raise
        finally:
            _n_running -= 1
        while _delayed and not _n_running:
            _delayed.pop(0)()


class Event:
    """A position in a stream's work; its time once that was reached."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.time: float | None = None
        stream.work.append(self._happen)
        self.n = stream.end

    def _happen(self) -> None:
        self.time = time.perf_counter()


@dataclass(frozen=True)
class Function:
    """A loaded image."""

    name: str
    parameters: tuple[str, ...]
    run: Engine
    shared_bytes: int
    max_threads: int


@dataclass(frozen=True)
class PackedLaunch:
    """A function, and all that it is launched with."""

    function: Function
    grid: Grid
    threads: int
    arguments: tuple[float, ...]
    shared_bytes: int


class TwinDriver:
    """See the module.

    Args:
        limit: bytes of the device's memory.
        order: of threads in the simulator: "forward", "reverse" or "random".
    """

    def __init__(
        self,
        cc: tuple[int, int] = (8, 0),
        *,
        name: str = "twin",
        limit: int = 1 << 30,
        n_sm: int = 4,
        order: str = "forward",
    ) -> None:
        self.info = DeviceInfo(name, cc, n_sm, 100 << 10, 4 << 20)
        self.spaces = Memory(limit)
        self.counts = Counts()
        self.order = order
        self.streams: WeakSet[Stream] = WeakSet()
        _twins.add(self)

    # Memory

    def memory(self) -> tuple[int, int]:
        return self.spaces.limit - self.spaces.used, self.spaces.limit

    def alloc(self, n_bytes: int) -> int:
        with _lock:
            free, total = self.memory()
            if n_bytes <= 0:
                raise ComputeError(f"{self.info.name}: allocation of {n_bytes} bytes")
            if n_bytes > free:
                raise AllocError(
                    f"{self.info.name}: {n_bytes} bytes asked, {free} of {total} are free"
                )
            self.counts.allocs += 1
            return self.spaces.alloc(n_bytes).base

    def free(self, address: int) -> None:
        """Free memory, after all work of the device, as the CUDA driver does."""
        with _lock:
            if _n_running:  # in the middle of a kernel, which comes before the rest of the work
                _delayed.append(lambda: self.free(address))
                return
            for stream in list(self.streams):
                stream.run_until(stream.end)
            self.spaces.free(address)

    def alloc_host(self, n_bytes: int) -> int:
        with _lock:
            return self.spaces.alloc(n_bytes, pinned=True).base

    def free_host(self, address: int) -> None:
        self.free(address)

    # Copies

    def _bytes(self, address: int, n_bytes: int) -> memoryview:
        """Bytes of this device's memory; KernelFault where they are not in one allocation."""
        space = self.spaces.find(address, n_bytes)
        if space.pinned:
            raise KernelFault(f"{n_bytes} bytes at {address:#x} are of the host")
        first = address - space.base
        return memoryview(space.bytes[first : first + n_bytes])

    def _source(self, address: int, n_bytes: int) -> memoryview:
        for twin in (self, *_twins):
            if twin.spaces.lookup(address):
                return twin._bytes(address, n_bytes)
        return self._bytes(address, n_bytes)

    def _check_host(self, address: int, n_bytes: int) -> bool:
        """True for pinned memory."""
        space = self.spaces.lookup(address)
        if space is not None and not self.spaces.find(address, n_bytes).pinned:
            raise KernelFault(f"{n_bytes} bytes at {address:#x} are of the device")
        return space is not None

    def copy_in(self, target: int, host: int, n_bytes: int, stream: Stream) -> None:
        with _lock:
            pinned = self._check_host(host, n_bytes)
            data = None if pinned else ctypes.string_at(host, n_bytes)

            def copy() -> None:
                given = data
                if given is None:
                    given = ctypes.string_at(host, n_bytes)
                    _reads.remove((host, host + n_bytes))
                self._bytes(target, n_bytes)[:] = given
                self.counts.copies_in += 1

            if pinned:
                _reads.append((host, host + n_bytes))
            stream.work.append(copy)

    def copy_out(self, host: int, source: int, n_bytes: int, stream: Stream) -> None:
        with _lock:
            self._check_host(host, n_bytes)
            if not any(a < host + n_bytes and host < b for a, b in _reads):
                ctypes.memset(host, POISON, n_bytes)

            def copy() -> None:
                ctypes.memmove(host, bytes(self._bytes(source, n_bytes)), n_bytes)
                self.counts.copies_out += 1

            stream.work.append(copy)

    def copy_on(self, target: int, source: int, n_bytes: int, stream: Stream) -> None:
        def copy() -> None:
            self._bytes(target, n_bytes)[:] = bytes(self._source(source, n_bytes))
            self.counts.copies_on += 1

        with _lock:
            stream.work.append(copy)

    def fill(self, target: int, byte: int, n_bytes: int, stream: Stream) -> None:
        def fill() -> None:
            self._bytes(target, n_bytes)[:] = bytes([byte]) * n_bytes
            self.counts.fills += 1

        with _lock:
            stream.work.append(fill)

    # Kernels

    def load(self, image: KernelImage) -> Function:
        kernel = getattr(image, "kernel", None)
        if isinstance(image, SimulatorImage):

            def run(
                memory: Memory, grid: Grid, threads: int, arguments: Sequence[float], shared: int
            ) -> None:
                simulate(kernel, memory, grid, threads, arguments, shared, order=self.order)

            return Function(kernel.name, image.parameters, run, 0, kernel.threads)
        name = kernel.name if kernel else image.entry
        program = _decoded(image.code, name)

        def emulate(
            memory: Memory, grid: Grid, threads: int, arguments: Sequence[float], shared: int
        ) -> None:
            program.launch(memory, grid, threads, arguments, shared)

        return Function(
            name,
            image.parameters,
            emulate,
            program.shared_bytes,
            program.max_threads,
        )

    def pack(
        self,
        function: Function,
        grid: Grid,
        *,
        threads: int,
        arguments: Sequence[float],
        shared_bytes: int = 0,
    ) -> PackedLaunch:
        """A launch, after the checks of the CUDA driver.

        Raises:
            ComputeError: the driver would refuse it, or an argument is not of its type.
        """
        name = function.name
        if not (0 < grid.x < 1 << 31 and 0 < grid.y < 1 << 16 and 0 < grid.z < 1 << 16):
            raise ComputeError(f"{name}: {grid}")
        if not 0 < threads <= function.max_threads:
            raise ComputeError(f"{name}: {threads} threads, it has at most {function.max_threads}")
        if function.shared_bytes + shared_bytes > self.info.shared_bytes:
            raise ComputeError(f"{name}: {shared_bytes} bytes of dynamic shared memory")
        if len(arguments) != len(function.parameters):
            raise ComputeError(f"{name}: {len(arguments)} arguments for {function.parameters}")
        packed = tuple(
            _argument(f"{name}, argument {i}", a, t)
            for i, (a, t) in enumerate(zip(arguments, function.parameters, strict=True))
        )
        return PackedLaunch(function, grid, threads, packed, shared_bytes)

    def _run(self, launches: Sequence[PackedLaunch]) -> None:
        for launch in launches:
            self.counts.launches[launch.function.name] += 1
            launch.function.run(
                self.spaces, launch.grid, launch.threads, launch.arguments, launch.shared_bytes
            )

    def launch(self, launches: Sequence[PackedLaunch], stream: Stream) -> None:
        given = tuple(launches)
        with _lock:
            stream.work.append(lambda: self._run(given))

    def capture(self, launches: Sequence[PackedLaunch], stream: Stream) -> tuple[PackedLaunch, ...]:
        return tuple(launches)

    def replay(self, graph: tuple[PackedLaunch, ...], stream: Stream) -> None:
        def run() -> None:
            self._run(graph)
            self.counts.graphs += 1

        with _lock:
            stream.work.append(run)

    # Order

    def create_stream(self) -> Stream:
        stream = Stream()
        self.streams.add(stream)
        return stream

    def record(self, stream: Stream) -> Event:
        with _lock:
            return Event(stream)

    def wait(self, stream: Stream, event: Event) -> None:
        with _lock:
            stream.work.append(lambda: event.stream.run_until(event.n))

    def elapsed_us(self, first: Event, last: Event) -> float:
        if first.time is None or last.time is None:
            raise ComputeError(f"{self.info.name}: an event has not happened")
        return (last.time - first.time) * 1e6

    def synchronize(self, stream: Stream) -> None:
        with _lock:
            stream.run_until(stream.end)
            self.spaces.check()

    def synchronize_event(self, event: Event) -> None:
        with _lock:
            event.stream.run_until(event.n)
            self.spaces.check()


@dataclass(frozen=True)
class PtxImage(KernelImage):
    """PTX of a kernel that is known."""

    kernel: GpuKernel | None = None


@cache
def ptx_image(kernel: GpuKernel, cc: tuple[int, int]) -> PtxImage:
    """A kernel's PTX, compiled once in a process."""
    return PtxImage(**vars(compile_ptx(kernel, cc)), kernel=kernel)


@cache
def _decoded(code: bytes, name: str) -> Program:
    return Program(code, name)


def _argument(what: str, value: float, type_: str) -> float:
    """A value as its parameter holds it."""
    if type_ == "f32":
        return float(struct.unpack("f", struct.pack("f", value))[0])
    if int(value) != value:
        raise ComputeError(f"{what}: {value} for {type_}")
    low, high = _LIMITS.get(type_, (0, 1 << 48))
    if not low <= value < high:
        raise ComputeError(f"{what}: {value} does not fit {type_}")
    return int(value)
