"""Buffer types of the CPU backend: plain memory is ``HostBufferType``; this is the repacked one.

    buffer = RepackBufferType().alloc_buffer(size)
    buffer.set_tensor(weight, ggml_bytes)          # stored 16 rows interleaved
    buffer.get_tensor(weight)                      # ggml's bytes again (see ``layout``)

A repacked tensor can only be a matmul's weight or GET_ROWS' table. No tensor is kept in both
layouts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .... import host
from ....buffer import ALIGNMENT, zeroed
from ....dtype import row_size
from ....errors import ShapeError, TypeMismatch
from ....rounding import ceil_div
from ....tensor import Tensor
from .layout import INTERLEAVED, ROWS, deinterleave, group_bytes, interleave

_HUGE = 2 << 20  # bytes of a huge page
_PIECE = 1 << 20  # bytes that are rearranged at a time


class RepackBuffer:
    """Weights with 16 rows interleaved; see ``layout``."""

    mem = None  # not ggml's layout, so there is no array view

    def __init__(self, size: int, buft: RepackBufferType) -> None:
        self.memory = zeroed(size, _HUGE if size >= _HUGE else ALIGNMENT)
        host.advise_hugepages(self.memory)
        self.buft = buft
        self.base = int(self.memory.ctypes.data)
        self.size = size

    def set_tensor(self, tensor: Tensor, data: npt.NDArray[np.uint8], offset: int = 0) -> None:
        if offset or data.nbytes != tensor.nbytes:
            raise ShapeError(f"'{tensor.name}': interleaved weights are written whole")
        matrices = data.reshape(tensor.ne[2] * tensor.ne[3], tensor.ne[1], -1)
        for matrix, groups in zip(matrices, self.groups(tensor), strict=True):
            for part, rows in _pieces(groups):
                groups[part] = interleave(tensor.type, matrix[rows])

    def get_tensor(
        self, tensor: Tensor, offset: int = 0, size: int | None = None
    ) -> npt.NDArray[np.uint8]:
        n_bytes = row_size(tensor.type, tensor.ne[0])
        out = np.empty((tensor.ne[2] * tensor.ne[3], tensor.ne[1], n_bytes), np.uint8)
        for matrix, groups in zip(out, self.groups(tensor), strict=True):
            for part, rows in _pieces(groups):
                matrix[rows] = deinterleave(tensor.type, groups[part], len(matrix[rows]))
        return out.reshape(-1)[offset : None if size is None else offset + size]

    def lock(self) -> str:
        return host.lock_memory(self.memory)

    def groups(self, tensor: Tensor) -> npt.NDArray[np.uint8]:
        """The tensor's memory as uint8[matrices, groups, group_bytes]."""
        if tensor.view_src is not None:
            raise ShapeError(f"'{tensor.name}' is a view: a repacked tensor is used whole")
        start = tensor.data - self.base
        size = self.buft.alloc_size(tensor)
        shape = (tensor.ne[2] * tensor.ne[3], -1, group_bytes(tensor.type, tensor.ne[0]))
        return self.memory[start : start + size].reshape(shape)


class RepackBufferType:
    """16 rows interleaved, on huge pages where the system has them."""

    name = "CPU_REPACK"
    alignment = ALIGNMENT
    is_host = False

    def alloc_buffer(self, size: int) -> RepackBuffer:
        return RepackBuffer(size, self)

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes of a tensor. Raises: TypeMismatch: its type has no interleaved layout."""
        if tensor.type not in INTERLEAVED:
            raise TypeMismatch(
                f"tensor '{tensor.name}' is {tensor.type.name}, which {self.name} cannot "
                "interleave; allocate it in a buffer of another type"
            )
        groups: int = ceil_div(tensor.ne[1], ROWS)
        return groups * group_bytes(tensor.type, tensor.ne[0]) * tensor.ne[2] * tensor.ne[3]

    def accepts(self, tensor: Tensor) -> bool:
        """Whether the tensor is a matrix of a type with an interleaved layout."""
        return tensor.type in INTERLEAVED and tensor.n_dims >= 2 and tensor.is_contiguous()


REPACK = RepackBufferType()


def _pieces(groups: npt.NDArray[np.uint8]) -> Iterator[tuple[slice, slice]]:
    """Slices of groups and of their rows: NumPy needs many times the memory of its operands."""
    step = max(1, _PIECE // groups.shape[1])
    for start in range(0, len(groups), step):
        yield slice(start, start + step), slice(ROWS * start, ROWS * (start + step))


def is_repacked(tensor: Tensor) -> bool:
    """Whether the tensor's bytes are interleaved."""
    return isinstance(tensor.buffer, RepackBuffer)
