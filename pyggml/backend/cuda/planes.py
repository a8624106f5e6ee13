"""The layout of quantized weights on a GPU: planes of codes, of steps and of scales.

    planes = planes_of(GGMLType.Q4_K)
    planes.n_bytes(4096, 11008)                    # of a matrix [4096, 11008]
    planes.offsets(4096, 11008).steps              # where the plane of steps begins

ggml's blocks of 18 or 210 bytes keep a thread from loading 16 bytes at once. Here a matrix is a
plane of codes, 16 (or 32) bytes for each group of 32 columns of a row, followed by planes of the
codes' high bits, of integer steps and minima, and of scales. All is derived from the declaration of
the format (``quants.block``):

    codes   of 8 bits: 32 bytes; else byte j has the low 4 bits of element j and, in its high half,
            those of element 16 + j
    high    the fifth bits: one word, in which element 16 s + 4 k + l has bit 8 l + k + 4 s; or
            fifth and sixth: words s = 0, 1, in which it has bits 8 l + 2 k and the next
    steps   the group's one or two integer scales, then its minima: as stored, one byte each
    scales  of each block: its scale, and its minimum (or scale of minima): float16

so that a word of 4 bytes of codes, masked, is what ``dp4a`` multiplies. The same bytes as ggml's,
but for steps of 6 bits, which take 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from ...dtype import GGMLType
from ...quants import BLOCK_TYPES
from ...quants.block import SUB, BlockType, Bytes, UnpackedBlocks
from ...rounding import ceil_div
from ...tensor import Tensor
from .buffer import CudaBuffer, CudaType

_ALIGN = 256


class Offsets(NamedTuple):
    """First bytes of planes; codes begin at 0."""

    high: int
    steps: int
    scales: int
    end: int


@dataclass(frozen=True)
class Planes:
    """The planes of a format.

    Attributes:
        code_bytes, high_bytes, step_bytes: of a group of 32 columns.
        n_steps: integer scales of a group: 0, 1 or 2.
        columns: that share a scale; scale_bytes: 2, or 4 with a minimum.
    """

    format: BlockType
    code_bytes: int
    high_bytes: int
    step_bytes: int
    n_steps: int
    columns: int
    scale_bytes: int

    def offsets(self, n: int, rows: int) -> Offsets:
        """The planes of a matrix of ``rows`` rows of ``n`` columns."""
        groups, at, found = rows * (n // SUB), 0, []
        for size, number in (
            (self.code_bytes, groups),
            (self.high_bytes, groups),
            (self.step_bytes, groups),
            (self.scale_bytes, rows * (n // self.columns)),
        ):
            at = ceil_div(at + size * number, _ALIGN) * _ALIGN
            found.append(at)
        return Offsets(*found)

    def n_bytes(self, n: int, rows: int) -> int:
        return self.offsets(n, rows).end

    def to_ggml(self, planes: Bytes, n: int, rows: int) -> Bytes:
        """ggml's bytes of a matrix: the inverse of the kernel ``to_planes``."""
        f, at, groups = self.format, self.offsets(n, rows), rows * (n // SUB)
        codes = planes[: self.code_bytes * groups].reshape(groups, -1)
        if self.code_bytes == 16:
            codes = np.concatenate([codes & 15, codes >> 4], axis=1)
            codes = codes | self._high(planes[at.high :][: self.high_bytes * groups])
        blocks = rows * (n // self.columns)
        scales = planes[at.scales :][: self.scale_bytes * blocks].view("<u2").reshape(blocks, -1)
        steps = minima = None
        if self.step_bytes:
            of_steps = planes[at.steps :][: self.step_bytes * groups].reshape(groups, -1)
            steps = of_steps[:, : self.n_steps].reshape(blocks, -1)
            minima = of_steps[:, self.n_steps :].reshape(blocks, -1) if f.minima else None
        low = scales[:, 1] if f.low else None
        stored = UnpackedBlocks(scales[:, 0], low, None, minima, codes.reshape(blocks, -1))
        if steps is not None:  # as ``pack`` takes them
            stored = stored._replace(steps=steps - np.uint8(f.step_zero))
        return np.ascontiguousarray(f.pack(stored)).reshape(-1)

    def _high(self, plane: Bytes) -> Bytes:
        """The high bits of codes, in place, [groups, 32]."""
        if not self.high_bytes:
            return np.zeros(1, np.uint8)
        element = np.arange(SUB)
        half, word, lane = element // 16, element % 16 // 4, element % 4
        if self.high_bytes == 4:
            bits = plane.view("<u4")[:, None] >> (8 * lane + word + 4 * half)
            return np.asarray((bits & 1) << 4, np.uint8)
        words = plane.view("<u4").reshape(-1, 2)[:, half]
        return np.asarray((words >> (8 * lane + 2 * word) & 3) << 4, np.uint8)


@cache
def planes_of(type: GGMLType) -> Planes | None:
    """The planes of a format; None if it has none: its codes are no plain fields."""
    f = BLOCK_TYPES.get(type)
    plain = f is not None and f.planes and f.scale == "f16" and not f.values and f.unit == 1
    if f is None or not plain or f.odd_steps or f.n_bytes or f.bits == 7:
        return None
    per_group = f.groups * SUB // f.columns if f.steps else 0
    minima = per_group if f.minima else 0
    return Planes(
        f,
        code_bytes=32 if f.bits == 8 else 16,
        high_bytes={5: 4, 6: 8}.get(f.bits, 0),
        step_bytes=per_group + minima,
        n_steps=per_group,
        columns=f.columns,
        scale_bytes=4 if f.low else 2,
    )


def known_planes(type: GGMLType) -> Planes:
    """The planes of a type that has them."""
    planes = planes_of(type)
    assert planes is not None
    return planes


class PlanesType(CudaType):
    """Memory of a device in which quantized matrices are planes."""

    def alloc_buffer(self, size: int) -> PlanesBuffer:
        return PlanesBuffer(self.driver, size, self)

    def alloc_size(self, tensor: Tensor) -> int:
        planes = planes_of(tensor.type)
        return tensor.nbytes if planes is None else planes.n_bytes(tensor.ne[0], tensor.nrows)


class PlanesBuffer(CudaBuffer):
    """A tensor is set and read whole, in ggml's layout."""

    def get_tensor(self, tensor: Tensor, offset: int = 0, size: int | None = None) -> Bytes:
        planes = known_planes(tensor.type)
        n_bytes = planes.n_bytes(tensor.ne[0], tensor.nrows)
        stored = np.empty(n_bytes, np.uint8)
        stream = self.buft.stream
        self.driver.copy_out(int(stored.ctypes.data), tensor.data, n_bytes, stream)
        self.driver.synchronize(stream)
        out = planes.to_ggml(stored, tensor.ne[0], tensor.nrows)
        return out[offset : None if size is None else offset + size]


def is_planes(tensor: Tensor) -> bool:
    """Whether a tensor is stored as planes."""
    return tensor.buffer is not None and isinstance(tensor.buffer.buft, PlanesType)
