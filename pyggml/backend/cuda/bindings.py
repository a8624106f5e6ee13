"""The driver of an NVIDIA GPU, by NVIDIA's ``cuda.bindings``.

    driver = open_driver(0)
    driver.info.name, driver.memory()

A launch is a tuple that ``cuLaunchKernel`` takes as it is: its arguments are packed once, so that
enqueuing one costs a third of a microsecond. Each thread makes the device's primary context current
before its first call, which torch and others share.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from cuda.bindings import driver as cuda

from ...errors import AllocError, BackendError, ComputeError
from .driver import DeviceInfo, Grid, Handle
from .kernel import KernelImage

_C_TYPES: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "f32": ctypes.c_float,
    "ptr": ctypes.c_uint64,
}
_NON_BLOCKING = 1  # of a stream: it does not wait for the legacy default stream
_PORTABLE_MAPPED = 3  # of pinned memory: for all contexts, at the same address on the device
_STATIC_SHARED = 48 << 10  # bytes that a block may have without asking
_here = threading.local()  # the driver whose context is current


def _name(result: Any) -> str:
    """The driver's own words for an error code."""
    text = cuda.cuGetErrorString(result)[1]
    what = text.decode() if text else "unknown error"
    return f"{getattr(result, 'name', result)}: {what}"


def _check(returned: tuple[Any, ...], what: str) -> Any:
    """What a call returned besides its code. Raises: AllocError, ComputeError."""
    result = returned[0]
    if result != cuda.CUresult.CUDA_SUCCESS:
        error = AllocError if result == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY else ComputeError
        raise error(f"{what}: {_name(result)}")
    return returned[1] if len(returned) == 2 else returned[1:]


class CudaDriver:
    """One GPU; see ``driver.Driver``."""

    def __init__(self, ordinal: int) -> None:
        self._device = _check(cuda.cuDeviceGet(ordinal), f"GPU {ordinal}")
        self._context = _check(cuda.cuDevicePrimaryCtxRetain(self._device), f"GPU {ordinal}")
        name = _check(cuda.cuDeviceGetName(256, self._device), "name")
        attribute = cuda.CUdevice_attribute
        self.info = DeviceInfo(
            name.split(b"\0")[0].decode(),
            (
                self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            ),
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
        )

    def _attribute(self, which: Any) -> int:
        return int(_check(cuda.cuDeviceGetAttribute(which, self._device), "attribute"))

    def _enter(self) -> None:
        """Make the context current in this thread, which may have used another GPU last."""
        if getattr(_here, "driver", None) is not self:
            _check(cuda.cuCtxSetCurrent(self._context), self.info.name)
            _here.driver = self

    def memory(self) -> tuple[int, int]:
        self._enter()
        free, total = _check(cuda.cuMemGetInfo(), "memory")
        return int(free), int(total)

    def alloc(self, n_bytes: int) -> int:
        self._enter()
        return int(_check(cuda.cuMemAlloc(n_bytes), f"{n_bytes} bytes"))

    def free(self, address: int) -> None:
        self._enter()
        cuda.cuMemFree(address)  # at the end of the process the context may be gone

    def alloc_host(self, n_bytes: int) -> int:
        self._enter()
        return int(
            _check(cuda.cuMemHostAlloc(n_bytes, _PORTABLE_MAPPED), f"{n_bytes} pinned bytes")
        )

    def free_host(self, address: int) -> None:
        self._enter()
        cuda.cuMemFreeHost(address)

    def create_stream(self) -> Handle:
        self._enter()
        made = _check(cuda.cuStreamCreate(_NON_BLOCKING), "stream")
        return self._owned(made, lambda handle: cuda.cuStreamDestroy(handle))

    def _owned(self, handle: Any, destroy: Callable[[Any], Any], keep: Any = None) -> Any:
        """Destroy a driver's object with ours; at the end of the process the driver does it."""

        def end(handle: Any) -> None:
            self._enter()
            destroy(handle)

        made = _Owned(handle, keep)
        weakref.finalize(made, end, handle).atexit = False
        return made

    def copy_in(self, target: int, host: int, n_bytes: int, stream: Handle) -> None:
        self._enter()
        _check(cuda.cuMemcpyHtoDAsync(target, host, n_bytes, stream.handle), "copy to the device")

    def copy_out(self, host: int, source: int, n_bytes: int, stream: Handle) -> None:
        self._enter()
        result = cuda.cuMemcpyDtoHAsync(host, source, n_bytes, stream.handle)
        _check(result, "copy from the device")

    def copy_on(self, target: int, source: int, n_bytes: int, stream: Handle) -> None:
        self._enter()
        _check(cuda.cuMemcpyAsync(target, source, n_bytes, stream.handle), "copy between devices")

    def fill(self, target: int, byte: int, n_bytes: int, stream: Handle) -> None:
        self._enter()
        _check(cuda.cuMemsetD8Async(target, byte, n_bytes, stream.handle), "fill")

    def load(self, image: KernelImage) -> Handle:
        self._enter()
        what = f"kernel {image.entry}"
        code = _check(cuda.cuLibraryLoadData(image.code, [], [], 0, [], [], 0), what)
        library = self._owned(code, lambda handle: cuda.cuLibraryUnload(handle))
        kernel = _check(cuda.cuLibraryGetKernel(library.handle, image.entry.encode()), what)
        return _Function(_check(cuda.cuKernelGetFunction(kernel), what), library, image)

    def pack(
        self,
        function: Handle,
        grid: Grid,
        *,
        threads: int,
        arguments: Sequence[float],
        shared_bytes: int = 0,
    ) -> Handle:
        self._enter()
        function.allow(shared_bytes)
        kinds = function.image.parameters
        pairs = zip(kinds, arguments, strict=True)
        values: list[Any] = [_C_TYPES[kind](value) for kind, value in pairs]
        table = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
        return _PackedLaunch(
            (function.handle, *grid, threads, 1, 1, shared_bytes), ctypes.addressof(table),
            (function, values, table),
        )  # fmt: skip

    def launch(self, launches: Sequence[Handle], stream: Handle) -> None:
        self._enter()
        call, success = cuda.cuLaunchKernel, cuda.CUresult.CUDA_SUCCESS
        queue = stream.handle
        for launch in launches:
            result = call(*launch.head, queue, launch.arguments, 0)[0]
            if result != success:
                image = launch.keep[0].image
                raise ComputeError(
                    f"{self.info.name}: kernel {image.entry} on {launch.head[1:4]} blocks of "
                    f"{launch.head[4]} threads: {_name(result)}"
                )

    def record(self, stream: Handle) -> Handle:
        self._enter()
        event = _Event(_check(cuda.cuEventCreate(0), "event"))
        _check(cuda.cuEventRecord(event.handle, stream.handle), "event")
        return event

    def wait(self, stream: Handle, event: Handle) -> None:
        self._enter()
        _check(cuda.cuStreamWaitEvent(stream.handle, event.handle, 0), "wait")

    def elapsed_us(self, first: Handle, last: Handle) -> float:
        self._enter()
        return 1e3 * float(_check(cuda.cuEventElapsedTime(first.handle, last.handle), "time"))

    def synchronize(self, stream: Handle) -> None:
        self._enter()
        result = cuda.cuStreamSynchronize(stream.handle)
        _check(result, f"{self.info.name}: the work before this point")

    def synchronize_event(self, event: Handle) -> None:
        self._enter()
        _check(cuda.cuEventSynchronize(event.handle), f"{self.info.name}: the work of an event")

    def capture(self, launches: Sequence[Handle], stream: Handle) -> Handle:
        self._enter()
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        _check(cuda.cuStreamBeginCapture(stream.handle, mode), "capture")
        try:
            self.launch(launches, stream)
        finally:
            graph = _check(cuda.cuStreamEndCapture(stream.handle), "capture")
        try:
            made = _check(cuda.cuGraphInstantiate(graph, 0), "capture")
        finally:
            cuda.cuGraphDestroy(graph)
        # the launches own its arguments
        return self._owned(made, lambda handle: cuda.cuGraphExecDestroy(handle), tuple(launches))

    def replay(self, graph: Handle, stream: Handle) -> None:
        self._enter()
        _check(
            cuda.cuGraphLaunch(graph.handle, stream.handle), f"{self.info.name}: replay of a graph"
        )


class _Owned:
    """A stream, a library or an executable graph, destroyed with this object; ``keep`` lives on."""

    def __init__(self, handle: Any, keep: Any = None) -> None:
        self.handle, self.keep = handle, keep


class _Function:
    """A loaded kernel; it keeps its library."""

    def __init__(self, handle: Any, library: Any, image: KernelImage) -> None:
        self.handle, self.image, self._library = handle, image, library
        self._allowed = _STATIC_SHARED

    def allow(self, shared_bytes: int) -> None:
        """Let blocks have so much dynamic shared memory."""
        if shared_bytes > self._allowed:
            which = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            what = f"{shared_bytes} bytes of shared memory for {self.image.entry}"
            _check(cuda.cuFuncSetAttribute(self.handle, which, shared_bytes), what)
            self._allowed = shared_bytes


class _PackedLaunch:
    """The arguments of ``cuLaunchKernel`` before and after the stream; ``keep`` owns them."""

    __slots__ = ("arguments", "head", "keep")

    def __init__(self, head: tuple[Any, ...], arguments: int, keep: tuple[Any, ...]) -> None:
        self.head, self.arguments, self.keep = head, arguments, keep


class _Event:
    """An event, destroyed with this object."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __del__(self) -> None:
        if not sys.is_finalizing():  # there are too many for a finalizer each
            cuda.cuEventDestroy(self.handle)


@cache
def open_driver(ordinal: int) -> CudaDriver:
    """The driver of GPU ``ordinal`` (``CUDA_VISIBLE_DEVICES`` counts). Raises: BackendError."""
    try:
        _check(cuda.cuInit(0), "cuInit")
        return CudaDriver(ordinal)
    except (ComputeError, AllocError) as e:
        raise BackendError(f"GPU {ordinal} does not start: {e}") from None
