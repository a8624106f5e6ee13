"""Memory that tensors live in: plain host memory, and addresses without memory.

    buffer = HostBufferType().alloc_buffer(1 << 20)
    buffer.base % 64                               # 0
    planned = AddressBufferType(HOST)              # in its place: counts bytes, allocates none

They follow ``BufferType`` and ``Buffer`` of ``tensor``. Host buffers come zeroed, and the kernel
commits a page only when it is first written.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from .errors import AllocError, ShapeError
from .host import lock_memory
from .tensor import BufferType, Tensor

_MAPPED_BYTES = 1 << 20  # from here on memory comes from the system, not from malloc
_PRIVATE: dict[str, int] = (  # shared memory, the default of mmap, never gets huge pages
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
)
ALIGNMENT = 64  # bytes: one cache line, and the widest vector


def zeroed(size: int, alignment: int = ALIGNMENT) -> npt.NDArray[np.uint8]:
    """Zeroed bytes at an aligned address. Raises: AllocError."""
    try:
        if size >= _MAPPED_BYTES:  # fresh pages: malloc may hand out touched ones, and clear them
            raw = np.frombuffer(mmap.mmap(-1, size + alignment, **_PRIVATE), np.uint8)
        else:
            raw = np.zeros(size + alignment, np.uint8)
    except (MemoryError, ValueError, OSError, OverflowError) as e:
        raise AllocError(f"cannot allocate {size} bytes of host memory: {e}") from None
    start = -raw.ctypes.data % alignment
    return raw[start : start + size]


class HostBuffer:
    """Plain host memory in ggml's own layout."""

    def __init__(self, mem: npt.NDArray[np.uint8], buft: BufferType) -> None:
        self.mem = mem
        self.buft = buft
        self.base = int(mem.ctypes.data)
        self.size = mem.nbytes

    def set_tensor(self, tensor: Tensor, data: npt.NDArray[np.uint8], offset: int = 0) -> None:
        self._bytes(tensor)[offset : offset + data.nbytes] = data

    def get_tensor(
        self, tensor: Tensor, offset: int = 0, size: int | None = None
    ) -> npt.NDArray[np.uint8]:
        return self._bytes(tensor)[offset : None if size is None else offset + size]

    def lock(self) -> str:
        return lock_memory(self.mem)

    def _bytes(self, tensor: Tensor) -> npt.NDArray[np.uint8]:
        if not tensor.is_contiguous():
            raise ShapeError(
                f"bytes of '{tensor.name}' {tensor.ne}: strides {tensor.nb} have gaps; "
                "use cont() first"
            )
        start = tensor.data - self.base
        return self.mem[start : start + tensor.nbytes]


class HostBufferType:
    """Plain host memory, 64-byte aligned, zeroed, committed on first write."""

    name = "Host"
    alignment = ALIGNMENT
    is_host = True

    def alloc_buffer(self, size: int) -> HostBuffer:
        return HostBuffer(zeroed(size, self.alignment), self)

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes


HOST = HostBufferType()


class AddressBuffer:
    """Addresses without memory, for tensors that are only planned or drawn.

    Its ``buft`` is a real type, so backends treat the tensors as they would treat real ones.
    """

    mem: npt.NDArray[np.uint8] | None = None
    base = 1 << 12

    def __init__(self, size: int, buft: BufferType) -> None:
        self.size, self.buft = size, buft

    def set_tensor(self, tensor: Tensor, data: npt.NDArray[np.uint8], offset: int = 0) -> None:
        raise AllocError(f"'{tensor.name}' is only drawn or planned: it has no memory")

    def get_tensor(
        self, tensor: Tensor, offset: int = 0, size: int | None = None
    ) -> npt.NDArray[np.uint8]:
        raise AllocError(f"'{tensor.name}' is only drawn or planned: it has no memory")

    def lock(self) -> str:
        return ""


class AddressBufferType:
    """In place of a buffer type: adds up the bytes that are asked for, and allocates none.

    Attributes:
        buft: the real type, which is that of the buffers.
        n_bytes: sum of the sizes of all buffers.
    """

    def __init__(self, buft: BufferType) -> None:
        self.buft, self.n_bytes = buft, 0
        self.name, self.alignment, self.is_host = buft.name, buft.alignment, buft.is_host

    def alloc_buffer(self, size: int) -> AddressBuffer:
        self.n_bytes += size
        return AddressBuffer(size, self.buft)

    def alloc_size(self, tensor: Tensor) -> int:
        return self.buft.alloc_size(tensor)
