"""A library in place of libcuda, for NVIDIA's ``cuda.bindings``: a twin does the work.

    twin = install(folder)                         # in a process of its own, before any call
    driver = CudaDriver(0)                         # the real one, with the real bindings

It checks what only a driver would: that a thread has a context, that dynamic shared memory above
48 KiB was asked for, that arguments are still in memory when a launch or a replay reads them. Needs
a C compiler. The driver gets a kernel's code alone, and finds what runs it by that.
Source: cuda.h of CUDA 13.0, the signatures.
"""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyggml.backend.cuda.driver import Grid
from pyggml.backend.cuda.kernel import GpuKernel, KernelImage
from pyggml.backend.cuda.numba_compiler import compile_ptx
from pyggml.errors import AllocError, PyggmlError

from .simulator import simulator_image
from .twin import TwinDriver

_SHIM = """
typedef int (*Resolve)(const char *, void **);
static Resolve resolve;
void stand_in_resolve(Resolve r) { resolve = r; }
int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags,
                        int *status) {
  *out = 0;
  if (resolve) resolve(name, out);
  if (status) *status = *out ? 0 : 1;
  return *out ? 0 : 500;
}
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
"""
_I, _U, _P = ctypes.c_int, ctypes.c_uint, ctypes.c_void_p
_ADDRESS, _SIZE = ctypes.c_uint64, ctypes.c_size_t
_OUT, _OUT_I, _OUT_SIZE, _OUT_ADDRESS, _OUT_F = (
    ctypes.POINTER(t) for t in (_P, _I, _SIZE, _ADDRESS, ctypes.c_float)
)
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_U,),
    "cuDeviceGet": (_OUT_I, _I),
    "cuDeviceGetName": (_P, _I, _I),
    "cuDeviceGetAttribute": (_OUT_I, _I, _I),
    "cuDevicePrimaryCtxRetain": (_OUT, _I),
    "cuCtxSetCurrent": (_P,),
    "cuMemGetInfo": (_OUT_SIZE, _OUT_SIZE),
    "cuMemAlloc": (_OUT_ADDRESS, _SIZE),
    "cuMemFree": (_ADDRESS,),
    "cuMemHostAlloc": (_OUT, _SIZE, _U),
    "cuMemFreeHost": (_P,),
    "cuStreamCreate": (_OUT, _U),
    "cuStreamDestroy": (_P,),
    "cuMemcpyHtoDAsync": (_ADDRESS, _P, _SIZE, _P),
    "cuMemcpyDtoHAsync": (_P, _ADDRESS, _SIZE, _P),
    "cuMemcpyAsync": (_ADDRESS, _ADDRESS, _SIZE, _P),
    "cuMemsetD8Async": (_ADDRESS, ctypes.c_ubyte, _SIZE, _P),
    "cuLibraryLoadData": (_OUT, _P, _P, _P, _U, _P, _P, _U),
    "cuLibraryUnload": (_P,),
    "cuLibraryGetKernel": (_OUT, _P, ctypes.c_char_p),
    "cuKernelGetFunction": (_OUT, _P),
    "cuFuncSetAttribute": (_P, _I, _I),
    "cuLaunchKernel": (_P, *(_U,) * 7, _P, ctypes.POINTER(_P), _P),
    "cuEventCreate": (_OUT, _U),
    "cuEventRecord": (_P, _P),
    "cuEventDestroy": (_P,),
    "cuStreamWaitEvent": (_P, _P, _U),
    "cuEventElapsedTime": (_OUT_F, _P, _P),
    "cuStreamSynchronize": (_P,),
    "cuEventSynchronize": (_P,),
    "cuStreamBeginCapture": (_P, _I),
    "cuStreamEndCapture": (_P, _OUT),
    "cuGraphInstantiate": (_OUT, _P, ctypes.c_uint64),
    "cuGraphDestroy": (_P,),
    "cuGraphExecDestroy": (_P,),
    "cuGraphLaunch": (_P, _P),
    "cuGetErrorString": (_I, ctypes.POINTER(ctypes.c_char_p)),
}
_OTHER_NAMES = {"cuGraphInstantiateWithFlags": "cuGraphInstantiate"}  # macros of cuda.h
_ANYWHERE = ("cuInit", "cuDevice", "cuCtx", "cuGetErrorString", "cuEventDestroy", "cuGraphExec")
_MEMORY, _CONTEXT, _ILLEGAL, _INVALID = 2, 201, 700, 1
_ATTRIBUTES = {16: 4, 97: 100 << 10, 38: 4 << 20}
_C_TYPES: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "f32": ctypes.c_float,
    "ptr": ctypes.c_uint64,
}


_images: dict[str, KernelImage] = {}


def ptx_code(kernel: GpuKernel, cc: tuple[int, int]) -> KernelImage:
    """PTX, for the twin's emulator; needs a compiler for GPUs."""
    made = compile_ptx(kernel, cc)
    _images[made.entry] = made
    return made


def simulator_code(kernel: GpuKernel, cc: tuple[int, int]) -> KernelImage:
    """The kernel's name in place of code, for the twin's simulator."""
    made = replace(simulator_image(kernel, cc), code=kernel.name.encode())
    _images[made.entry] = made
    return made


class StandIn:
    """The driver's functions, by name, over a twin.

    Attributes:
        calls: the names of all calls.
        failed: what went wrong in the last one.
    """

    def __init__(self, twin: TwinDriver) -> None:
        self.twin = twin
        self.calls: set[str] = set()
        self.failed = ""
        self._objects: dict[int, Any] = {}
        self._numbers = itertools.count(1 << 20, 64)
        self._here = threading.local()
        self._captured: list[Any] | None = None
        self._shared: dict[int, int] = {}  # dynamic bytes that a function may have
        self._kernels: dict[int, list[int]] = {}  # of a library

    @property
    def n_objects(self) -> int:
        """Streams, libraries, kernels, events and graphs that were not destroyed."""
        return len(self._objects)

    def resolved(self) -> dict[str, Any]:
        """C functions."""
        return {
            name: ctypes.CFUNCTYPE(_I, *types)(self._guarded(name))
            for name, types in SIGNATURES.items()
        }

    def _guarded(self, name: str) -> Callable[..., int]:
        function = getattr(self, name)

        def call(*args: Any) -> int:
            self.calls.add(name)
            if not name.startswith(_ANYWHERE) and not getattr(self._here, "context", None):
                return _CONTEXT
            try:
                return int(function(*args) or 0)
            except AllocError:
                return _MEMORY
            except PyggmlError as error:
                self.failed = str(error)
                print(f"{name}: {error}", file=sys.stderr)
                return _ILLEGAL
            except (KeyError, ValueError) as error:
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
                return _INVALID

        return call

    def _new(self, out: Any, value: Any) -> None:
        out[0] = number = next(self._numbers)
        self._objects[number] = value

    def cuInit(self, flags: int) -> None: ...

    def cuDeviceGet(self, out: Any, ordinal: int) -> None:
        out[0] = ordinal

    def cuDeviceGetName(self, name: int, size: int, device: int) -> None:
        ctypes.memmove(name, b"stand-in\0", 9)

    def cuDeviceGetAttribute(self, out: Any, which: int, device: int) -> None:
        cc = dict(zip((75, 76), self.twin.info.cc, strict=True))
        out[0] = (cc | _ATTRIBUTES)[which]

    def cuDevicePrimaryCtxRetain(self, out: Any, device: int) -> None:
        out[0] = 1 << 12

    def cuCtxSetCurrent(self, context: int) -> None:
        self._here.context = context

    def cuMemGetInfo(self, free: Any, total: Any) -> None:
        free[0], total[0] = self.twin.memory()

    def cuMemAlloc(self, out: Any, size: int) -> None:
        out[0] = self.twin.alloc(size)

    def cuMemFree(self, address: int) -> None:
        self.twin.free(address)

    def cuMemHostAlloc(self, out: Any, size: int, flags: int) -> int:
        out[0] = self.twin.alloc_host(size)
        return 0 if flags == 3 else _INVALID  # portable, and mapped for kernels

    def cuMemFreeHost(self, address: int) -> None:
        self.twin.free_host(address)

    def cuStreamCreate(self, out: Any, flags: int) -> int:
        self._new(out, self.twin.create_stream())
        return 0 if flags == 1 else _INVALID  # not waiting for the default stream

    def cuStreamDestroy(self, stream: int) -> None:
        del self._objects[stream]

    def cuMemcpyHtoDAsync(self, target: int, host: int, size: int, stream: int) -> None:
        self.twin.copy_in(target, host, size, self._objects[stream])

    def cuMemcpyDtoHAsync(self, host: int, source: int, size: int, stream: int) -> None:
        self.twin.copy_out(host, source, size, self._objects[stream])

    def cuMemcpyAsync(self, target: int, source: int, size: int, stream: int) -> None:
        self.twin.copy_on(target, source, size, self._objects[stream])

    def cuMemsetD8Async(self, target: int, byte: int, size: int, stream: int) -> None:
        self.twin.fill(target, byte, size, self._objects[stream])

    def cuLibraryLoadData(self, out: Any, code: int, *options: Any) -> int:
        self._new(out, ctypes.string_at(code))
        return _INVALID if options[2] or options[5] else 0

    def cuLibraryUnload(self, library: int) -> None:
        """Its kernels are gone with it."""
        for number in (library, *self._kernels.pop(library, ())):
            del self._objects[number]

    def cuLibraryGetKernel(self, out: Any, library: int, name: bytes) -> None:
        image = _images[name.decode()]
        if image.code.rstrip(b"\0") != self._objects[library]:
            raise KeyError(f"{name.decode()}: another code")
        self._new(out, self.twin.load(image))
        self._kernels.setdefault(library, []).append(out[0])

    def cuKernelGetFunction(self, out: Any, kernel: int) -> None:
        out[0] = kernel

    def cuFuncSetAttribute(self, function: int, which: int, value: int) -> int:
        self._shared[function] = value
        return 0 if which == 8 and value <= self.twin.info.shared_bytes else _INVALID

    def cuLaunchKernel(self, function: int, *args: Any) -> int:
        *sizes, shared, stream, values, extra = args
        if shared > self._shared.get(function, 48 << 10) or extra or sizes[4:6] != [1, 1]:
            return _INVALID
        known = self._objects[function]
        given = [
            ctypes.cast(values[i], ctypes.POINTER(_C_TYPES[kind])).contents.value
            for i, kind in enumerate(known.parameters)
        ]
        launch = self.twin.pack(
            known, Grid(*sizes[:3]), threads=sizes[3], arguments=given, shared_bytes=shared
        )
        if self._captured is not None:
            self._captured.append(launch)
        else:
            self.twin.launch([launch], self._objects[stream])
        return 0

    def cuEventCreate(self, out: Any, flags: int) -> None:
        self._new(out, None)

    def cuEventRecord(self, event: int, stream: int) -> None:
        self._objects[event] = self.twin.record(self._objects[stream])

    def cuEventDestroy(self, event: int) -> None:
        del self._objects[event]

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        self.twin.wait(self._objects[stream], self._objects[event])

    def cuEventElapsedTime(self, out: Any, first: int, last: int) -> None:
        out[0] = self.twin.elapsed_us(self._objects[first], self._objects[last]) / 1e3

    def cuStreamSynchronize(self, stream: int) -> None:
        self.twin.synchronize(self._objects[stream])

    def cuEventSynchronize(self, event: int) -> None:
        self.twin.synchronize_event(self._objects[event])

    def cuStreamBeginCapture(self, stream: int, mode: int) -> int:
        self._captured = []
        return 0 if mode == 1 else _INVALID  # of this thread

    def cuStreamEndCapture(self, stream: int, out: Any) -> None:
        self._new(out, tuple(self._captured or ()))
        self._captured = None

    def cuGraphInstantiate(self, out: Any, graph: int, flags: int) -> int:
        self._new(out, self._objects[graph])
        return _INVALID if flags else 0

    def cuGraphDestroy(self, graph: int) -> None:
        del self._objects[graph]

    def cuGraphExecDestroy(self, graph: int) -> None:
        del self._objects[graph]

    def cuGraphLaunch(self, graph: int, stream: int) -> None:
        self.twin.replay(self._objects[graph], self._objects[stream])

    def cuGetErrorString(self, code: int, out: Any) -> None:
        self._text = ctypes.create_string_buffer(f"stand-in's error {code}".encode())
        out[0] = ctypes.cast(self._text, ctypes.c_char_p)


def install(folder: Path, **options: Any) -> StandIn:
    """Load a stand-in as libcuda.so.1, for the rest of this process; ``options`` of its twin."""
    source, library = folder / "stand_in.c", folder / "libcuda.so.1"
    source.write_text(_SHIM)
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source]
    subprocess.run(command, check=True)
    made = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    stand_in = StandIn(TwinDriver(name="stand-in", **options))
    functions = stand_in.resolved()

    def resolve(name: bytes, out: Any) -> int:
        found = functions.get(_OTHER_NAMES.get(name.decode(), name.decode()))
        if found is not None:
            out[0] = ctypes.cast(found, _P).value
        return 0

    kept = ctypes.CFUNCTYPE(_I, ctypes.c_char_p, _OUT)(resolve)
    made.stand_in_resolve(kept)
    _KEPT.extend((made, kept, functions))
    return stand_in


_KEPT: list[Any] = []
