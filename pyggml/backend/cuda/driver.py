"""The calls that this backend makes of a GPU's driver, and nothing else of it.

    driver = open_driver(0)                        # the first GPU: ``bindings.CudaDriver``
    stream = driver.create_stream()
    function = driver.load(image)
    launch = driver.pack(function, Grid(128), threads=256, arguments=(address, 1024, 0.5))
    driver.launch([launch], stream)
    driver.synchronize(stream)

Addresses are of the device's memory unless they are said to be of the host. Kernels may write to
pinned memory of the host too, at its own address. Work of a stream is done in the order in which it
was enqueued. Every call may come from any thread. ``bindings.py`` makes the calls of the CUDA
driver; tests have a driver that needs no GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from .kernel import KernelImage

Handle = Any  # of a stream, event, function, launch or graph: only the driver looks into it


class Grid(NamedTuple):
    """The blocks of a launch."""

    x: int
    y: int = 1
    z: int = 1


class DeviceInfo(NamedTuple):
    """What a device is.

    Attributes:
        cc: compute capability, such as (9, 0).
        n_sm: streaming multiprocessors.
        shared_bytes: shared memory that a block may have.
    """

    name: str
    cc: tuple[int, int]
    n_sm: int
    shared_bytes: int
    l2_bytes: int


class Driver(Protocol):
    """One device.

    Raises:
        ComputeError: any call, with the driver's own words; ``AllocError`` for memory.
    """

    info: DeviceInfo

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes."""
        ...

    def alloc(self, n_bytes: int) -> int:
        """The address of new memory, aligned to 256 bytes, of any content."""
        ...

    def free(self, address: int) -> None: ...

    def alloc_host(self, n_bytes: int) -> int:
        """The address of new pinned memory of the host."""
        ...

    def free_host(self, address: int) -> None: ...

    def create_stream(self) -> Handle:
        """A new stream; it is destroyed with its handle."""
        ...

    def copy_in(self, target: int, host: int, n_bytes: int, stream: Handle) -> None:
        """Enqueue a copy from the host; memory that is not pinned may be changed on return."""
        ...

    def copy_out(self, host: int, source: int, n_bytes: int, stream: Handle) -> None:
        """Enqueue a copy to the host."""
        ...

    def copy_on(self, target: int, source: int, n_bytes: int, stream: Handle) -> None:
        """Enqueue a copy inside of the device, or from another device's memory."""
        ...

    def fill(self, target: int, byte: int, n_bytes: int, stream: Handle) -> None:
        """Enqueue setting bytes."""
        ...

    def load(self, image: KernelImage) -> Handle:
        """The function of an image; its code is unloaded with its handle, which launches keep."""
        ...

    def pack(
        self,
        function: Handle,
        grid: Grid,
        *,
        threads: int,
        arguments: Sequence[float],
        shared_bytes: int = 0,
    ) -> Handle:
        """A launch, with its arguments packed as the image's parameters say."""
        ...

    def launch(self, launches: Sequence[Handle], stream: Handle) -> None:
        """Enqueue launches, in order."""
        ...

    def record(self, stream: Handle) -> Handle:
        """A new event after all work of a stream; it has a time."""
        ...

    def wait(self, stream: Handle, event: Handle) -> None:
        """Let later work of a stream begin after an event."""
        ...

    def elapsed_us(self, first: Handle, last: Handle) -> float:
        """The time between two events that have happened."""
        ...

    def synchronize(self, stream: Handle) -> None:
        """Wait for a stream's work."""
        ...

    def synchronize_event(self, event: Handle) -> None:
        """Wait for an event."""
        ...

    def capture(self, launches: Sequence[Handle], stream: Handle) -> Handle:
        """A graph of launches, ready to be replayed."""
        ...

    def replay(self, graph: Handle, stream: Handle) -> None:
        """Enqueue a graph."""
        ...
