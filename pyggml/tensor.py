"""A tensor header: type, sizes, strides, how it is computed and where its data lives.

    a = ctx.new_tensor_2d(GGMLType.F32, 2, 4)      # ne = (2, 4, 1, 1)
    a.set(np.arange(8, dtype=np.float32).reshape(4, 2))
    a.numpy()                                      # the same memory, shape ne[::-1] without ones

Headers are cheap and own no data: ``data`` is an address inside ``buffer``, which owns the bytes; a
buffer type decides alignment and layout. ``ne[0]`` is the contiguous dimension, so NumPy's shape is
``ne`` reversed.
Source: ggml, ``struct ggml_tensor`` and its stride rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntFlag
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .dtype import GGMLType, numpy_dtype, row_size
from .errors import AllocError, ShapeError, TypeMismatch

MAX_DIMS = 4
_MAX_NAME_BYTES = 63  # GGML_MAX_NAME is 64 with the closing NUL
Dims = tuple[int, int, int, int]
NO_PARAMS: Mapping[str, Any] = MappingProxyType({})


class Flag(IntFlag):
    """What a tensor is to its graph."""

    NONE = 0
    INPUT = 1  # written by the caller before compute: allocated first, never shared
    OUTPUT = 2  # read by the caller after compute: never reused
    PARAM = 4  # trainable: stays a node although nothing computes it
    LOSS = 8  # minimized by training


def strides(type: GGMLType, ne: Dims) -> Dims:
    """ggml's strides in bytes of a contiguous tensor."""
    nb1 = row_size(type, ne[0])
    return (type.type_size, nb1, nb1 * ne[1], nb1 * ne[1] * ne[2])


class NodeOp(Protocol):
    """The op of a node, as readers of graphs need it; ``ops.op.Op`` is one."""

    @property
    def name(self) -> str:
        """ggml's name."""
        ...

    @property
    def src(self) -> tuple[str, ...]:
        """Names of the sources; a trailing ``?`` marks an optional one."""
        ...

    @property
    def inplace_ok(self) -> bool:
        """Whether the result may take the place of the first source."""
        ...

    @property
    def gradients(self) -> Mapping[str, Callable[..., Any]]:
        """The gradients of sources, by name; see ``ops.op.define_op``."""
        ...

    @property
    def reference(self) -> Callable[..., Any] | None:
        """The op on NumPy arrays; None for an op that makes views."""
        ...

    def updated(self, node: Tensor) -> tuple[Tensor, ...]:
        """The sources that a node writes besides its result; none for most nodes."""
        ...

    @property
    def is_view(self) -> bool:
        """Whether nodes of this op are views, for which nothing runs."""
        ...


class BufferType(Protocol):
    """How a backend lays out tensors in memory."""

    name: str
    alignment: int  # bytes
    is_host: bool  # ggml's layout, at addresses that the host reads and writes

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes. Raises: AllocError."""
        ...

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes that ``tensor`` takes in a buffer of this type (padding included)."""
        ...


class Buffer(Protocol):
    """A piece of memory that tensors point into; it lives as long as a tensor refers to it."""

    @property
    def buft(self) -> BufferType: ...

    @property
    def base(self) -> int:
        """Address of the first byte."""
        ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    @property
    def mem(self) -> npt.NDArray[np.uint8] | None:
        """The bytes; None when the host cannot address them."""
        ...

    def set_tensor(self, tensor: Tensor, data: npt.NDArray[np.uint8], offset: int = 0) -> None:
        """Store ggml's bytes of ``tensor`` (converted to the buffer's own layout).

        Args:
            offset: byte of the tensor that ``data`` begins at. Layouts other than ggml's may want
                all of it at once.
        """
        ...

    def get_tensor(
        self, tensor: Tensor, offset: int = 0, size: int | None = None
    ) -> npt.NDArray[np.uint8]:
        """ggml's bytes of ``tensor``, a copy unless ``is_host``.

        Args:
            offset: the first byte; size: how many, None for all from there on.
        """
        ...

    def lock(self) -> str:
        """Keep it from being swapped out; an empty string, or why that is not possible."""
        ...


class Tensor:
    """One tensor header.

    Attributes:
        ne: elements in each dimension, ``ne[0]`` contiguous.
        nb: stride in bytes of each dimension (of a block, for ``nb[0]`` of a quantized type).
        op: what computes it, None for a leaf; with ``op_params`` and ``src``.
        view_src: the root tensor whose memory this one looks into, at ``view_offs`` bytes.
        buffer, data: where the data lives; ``data`` is 0 until it is allocated.
    """

    __slots__ = (
        "buffer", "data", "flags", "name", "nb", "ne", "op", "op_params", "src", "type",
        "view_offs", "view_src",
    )  # fmt: skip

    def __init__(self, type: GGMLType, ne: Dims, nb: Dims | None = None) -> None:
        self.type = type
        self.ne = ne
        self.nb = strides(type, ne) if nb is None else nb
        self.op: NodeOp | None = None
        self.op_params: Mapping[str, Any] = NO_PARAMS
        self.src: tuple[Tensor | None, ...] = ()
        self.view_src: Tensor | None = None
        self.view_offs = 0
        self.buffer: Buffer | None = None
        self.data = 0
        self.flags = Flag.NONE
        self.name = ""

    def __repr__(self) -> str:
        op = f" = {self.op.name}" if self.op else ""
        return f"<{self.type.name} '{self.name}' {list(self.ne[: self.n_dims])}{op}>"

    @property
    def n_dims(self) -> int:
        """Highest dimension of more than one element, at least 1."""
        return next((i + 1 for i in (3, 2, 1) if self.ne[i] != 1), 1)

    @property
    def root(self) -> Tensor:
        """The tensor that owns the memory."""
        return self if self.view_src is None else self.view_src

    @property
    def nelements(self) -> int:
        return self.ne[0] * self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def nrows(self) -> int:
        return self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to the end of the last one, gaps included."""
        type, (n0, n1, n2, n3), (nb0, nb1, nb2, nb3) = self.type, self.ne, self.nb
        if n0 <= 0 or n1 <= 0 or n2 <= 0 or n3 <= 0:
            return 0
        quantized = type.block_size > 1
        row = row_size(type, n0) if quantized else type.type_size + (n0 - 1) * nb0
        return row + (n1 - 1) * nb1 + (n2 - 1) * nb2 + (n3 - 1) * nb3

    @property
    def shape(self) -> tuple[int, ...]:
        """NumPy's shape: ``ne`` reversed, without trailing ones of ``ne``."""
        return self.ne[: self.n_dims][::-1]

    def is_contiguous(self) -> bool:
        """Whether elements lie without gaps in order (dimensions of one element do not count)."""
        want = self.type.type_size
        for i in range(MAX_DIMS):
            if self.ne[i] != 1 and self.nb[i] != want:
                return False
            if i == 0:
                want = want * self.ne[0] // self.type.block_size
            else:
                want *= self.ne[i]
        return True

    def is_contiguous_rows(self) -> bool:
        """Whether each row (dimension 0) lies without gaps."""
        return self.ne[0] == self.type.block_size or self.nb[0] == self.type.type_size

    def is_transposed(self) -> bool:
        return self.nb[0] > self.nb[1]

    def is_permuted(self) -> bool:
        return any(self.nb[i] > self.nb[i + 1] for i in range(3))

    def same_shape(self, other: Tensor) -> bool:
        return self.ne == other.ne

    def set_name(self, name: str) -> Tensor:
        """Name the tensor and return it; of the name's UTF-8, whole characters up to 63 bytes."""
        if len(name) * 4 > _MAX_NAME_BYTES:
            name = name.encode(errors="replace")[:_MAX_NAME_BYTES].decode(errors="ignore")
        self.name = name
        return self

    def set_input(self) -> Tensor:
        """Mark as written by the caller before each compute."""
        self.flags |= Flag.INPUT
        return self

    def set_output(self) -> Tensor:
        """Mark as read by the caller after a compute: its memory is never reused."""
        self.flags |= Flag.OUTPUT
        return self

    def set_param(self) -> Tensor:
        """Mark as trainable. Raises: TypeMismatch, ShapeError: not F32, or not a leaf."""
        if self.type is not GGMLType.F32:
            raise TypeMismatch(
                f"'{self.name}' is {self.type.name}: a trainable tensor must be F32; convert it"
            )
        if self.op is not None or self.view_src is not None:
            raise ShapeError(f"'{self.name}' is computed or a view: only a leaf can be trained")
        self.flags |= Flag.PARAM
        return self

    def set_loss(self) -> Tensor:
        """Mark as minimized by training. Raises: ShapeError: it is not one F32 number."""
        if self.nelements != 1 or self.type is not GGMLType.F32:
            raise ShapeError(f"'{self.name}' {self.ne} must be one F32 number to be a loss")
        self.flags |= Flag.LOSS
        return self

    def numpy(self, *, squeeze: bool = True) -> npt.NDArray[Any]:
        """The data as a NumPy array on the same memory (BF16 as uint16 bits).

        Args:
            squeeze: drop trailing ones of ``ne``; otherwise always four dimensions.

        Raises:
            AllocError: the tensor has no host memory (yet).
            TypeMismatch: a quantized type, whose values are not addressable.
        """
        dtype = numpy_dtype(self.type)
        if dtype is None:
            raise TypeMismatch(
                f"'{self.name}' is {self.type.name}: quantized values have no NumPy dtype; "
                "use pyggml.quants.to_float(), or bytes() for the blocks"
            )
        mem = self._host_memory()
        n = self.n_dims if squeeze else MAX_DIMS
        return np.ndarray(
            self.ne[:n][::-1], dtype, mem, self.data - int(mem.ctypes.data), self.nb[:n][::-1]
        )

    def span(self) -> Tensor:
        """All bytes from the first element to the last, gaps included, as a row of I8."""
        row = Tensor(GGMLType.I8, (self.nbytes, 1, 1, 1)).set_name(self.name)
        row.buffer, row.data = self.buffer, self.data
        return row

    def bytes(self) -> npt.NDArray[np.uint8]:
        """ggml's bytes of a contiguous tensor, whatever layout its buffer has."""
        if self.buffer is None:
            raise AllocError(f"'{self.name}' {self.ne} has no data: allocate it first")
        return self.buffer.get_tensor(self)

    def set(self, values: npt.ArrayLike) -> Tensor:
        """Copy values in: an array of the tensor's shape, or uint8 blocks of a quantized type.

        Raises:
            ShapeError: another number of elements or bytes.
        """
        if self.type.is_quantized:
            data = np.ascontiguousarray(values)
            if data.dtype != np.uint8 or data.nbytes != self.nbytes:
                raise ShapeError(
                    f"set '{self.name}': got {data.nbytes} bytes of {data.dtype}, want "
                    f"{self.nbytes} bytes (uint8) of {self.type.name} blocks; see pyggml.quants"
                )
        else:
            data = np.asarray(values, numpy_dtype(self.type))
            if data.size != self.nelements:
                raise ShapeError(
                    f"set '{self.name}': got {data.size} elements, want {self.nelements} "
                    f"(shape {self.shape})"
                )
            if self.buffer is not None and self.buffer.mem is not None:
                view = self.numpy()
                view[...] = data.reshape(view.shape)
                return self
        if self.buffer is None:
            raise AllocError(f"'{self.name}' {self.ne} has no data: allocate it first")
        self.buffer.set_tensor(self, np.ascontiguousarray(data).reshape(-1).view(np.uint8))
        return self

    def _host_memory(self) -> npt.NDArray[np.uint8]:
        if self.buffer is None or self.data == 0:
            raise AllocError(f"'{self.name}' {self.ne} has no data: allocate it first")
        if self.buffer.mem is None:
            raise AllocError(
                f"'{self.name}' lives in a {self.buffer.buft.name} buffer that the host cannot "
                "address: use bytes()"
            )
        return self.buffer.mem
