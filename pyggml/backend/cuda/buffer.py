"""Memory of a GPU, and pinned memory of the host.

    buffer = CudaType(driver, "CUDA0").alloc_buffer(1 << 20)
    buffer.set_tensor(tensor, data)                # done on return

A buffer is one allocation of the device; a tensor is an address in it. Its content is not cleared.
Pinned memory is freed when neither its buffer nor an array of it is left (``Tensor.numpy``).
"""

from __future__ import annotations

import ctypes
import weakref

import numpy as np
import numpy.typing as npt

from ...buffer import HostBuffer, HostBufferType
from ...errors import AllocError, ShapeError
from ...tensor import BufferType, Tensor
from .driver import Driver

Bytes = npt.NDArray[np.uint8]
_ALIGNMENT = 256


class CudaType:
    """Memory of a device in ggml's own layout."""

    alignment = _ALIGNMENT
    is_host = False

    def __init__(self, driver: Driver, name: str) -> None:
        self.driver, self.name = driver, name
        self.stream = driver.create_stream()  # of the host's copies, which are done on return

    def alloc_buffer(self, size: int) -> CudaBuffer:
        """Raises: AllocError."""
        return CudaBuffer(self.driver, size, self)

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes


class CudaBuffer:
    """One allocation of a device."""

    mem = None

    def __init__(self, driver: Driver, size: int, buft: CudaType) -> None:
        self.driver, self.size, self.buft = driver, size, buft
        try:
            self.base = driver.alloc(max(size, 1))
        except AllocError as e:
            free, total = driver.memory()
            raise AllocError(
                f"{driver.info.name}: cannot allocate {size / 2**20:.1f} MiB: "
                f"{free / 2**20:.1f} of {total / 2**20:.1f} MiB are free ({e}); put fewer layers "
                "there (`n_gpu_layers`), or use a smaller context or KV cache type"
            ) from None
        weakref.finalize(self, driver.free, self.base).atexit = False

    def set_tensor(self, tensor: Tensor, data: Bytes, offset: int = 0) -> None:
        """Copy ggml's bytes in; done on return."""
        self._check(tensor)
        data = np.ascontiguousarray(data)
        stream = self.buft.stream
        self.driver.copy_in(tensor.data + offset, int(data.ctypes.data), data.nbytes, stream)
        self.driver.synchronize(stream)

    def get_tensor(self, tensor: Tensor, offset: int = 0, size: int | None = None) -> Bytes:
        """A copy of ggml's bytes."""
        self._check(tensor)
        out = np.empty(tensor.nbytes - offset if size is None else size, np.uint8)
        stream = self.buft.stream
        self.driver.copy_out(int(out.ctypes.data), tensor.data + offset, out.nbytes, stream)
        self.driver.synchronize(stream)
        return out

    def lock(self) -> str:
        return ""

    def _check(self, tensor: Tensor) -> None:
        if not tensor.is_contiguous():
            raise ShapeError(
                f"bytes of '{tensor.name}' {tensor.ne}: strides {tensor.nb} have gaps; "
                "use cont() first"
            )


class PinnedType(HostBufferType):
    """Memory of the host that the device copies from and to by itself."""

    name = "Pinned"

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def alloc_buffer(self, size: int) -> HostBuffer:
        """Raises: AllocError."""
        return PinnedBuffer(self.driver, size, self)


class PinnedBuffer(HostBuffer):
    """Pinned memory; it starts as zeros."""

    def __init__(self, driver: Driver, size: int, buft: BufferType) -> None:
        address = driver.alloc_host(max(size, 1))
        raw = (ctypes.c_uint8 * max(size, 1)).from_address(address)
        # all arrays of this memory and views of them keep `raw` alive; the buffer is but one user
        weakref.finalize(raw, driver.free_host, address).atexit = False
        mem: Bytes = np.ctypeslib.as_array(raw)[:size]
        mem[:] = 0
        super().__init__(mem, buft)
