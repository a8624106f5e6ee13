"""A context owns tensor headers and, unless ``no_alloc``, the memory of their data.

    ctx = Context()
    a = ctx.new_tensor_2d(GGMLType.F32, 2, 4)
    ctx.used_mem                                   # bytes of headers and data, as ggml counts them

With ``no_alloc=True`` tensors get memory later, from a backend buffer or the graph allocator.
Not thread-safe. Source: ggml, ``ggml_init``, ``ggml_new_tensor``, ``ggml_view_*``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .buffer import HOST, HostBuffer
from .dtype import GGMLType, from_numpy_dtype
from .errors import AllocError, ShapeError, TypeMismatch
from .rounding import round_up
from .tensor import MAX_DIMS, Dims, Tensor

TENSOR_OVERHEAD = 368  # bytes that ggml counts for a header: object 32 + tensor 336
_CHUNK = 1 << 20  # bytes: the arena of a context without mem_size grows by at least this


class Context:
    """An arena of tensors.

    Args:
        mem_size: bytes for headers and data together, as in ggml; None grows as needed.
        no_alloc: create headers only.
    """

    def __init__(self, mem_size: int | None = None, *, no_alloc: bool = False) -> None:
        self.mem_size = mem_size
        self.no_alloc = no_alloc
        self.used_mem = 0
        self.tensors: list[Tensor] = []
        self._arena: HostBuffer | None = None
        self._arena_used = 0

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.tensors)

    def get_tensor(self, name: str) -> Tensor | None:
        """The first tensor of that name."""
        return next((t for t in self.tensors if t.name == name), None)

    def new_tensor(self, type: GGMLType, ne: tuple[int, ...] | list[int]) -> Tensor:
        """A new tensor of 1 to 4 dimensions.

        Raises:
            ShapeError: no or more than 4 dimensions, a negative size, or a row that is not a
                multiple of the type's block.
            AllocError: ``mem_size`` is used up.
        """
        tensor = Tensor(GGMLType(type), _dims(ne))
        self._account(TENSOR_OVERHEAD + (0 if self.no_alloc else tensor.nbytes))
        if not self.no_alloc:
            self._alloc(tensor)
        self.tensors.append(tensor)
        return tensor

    def new_tensor_1d(self, type: GGMLType, ne0: int) -> Tensor:
        return self.new_tensor(type, (ne0,))

    def new_tensor_2d(self, type: GGMLType, ne0: int, ne1: int) -> Tensor:
        return self.new_tensor(type, (ne0, ne1))

    def new_tensor_3d(self, type: GGMLType, ne0: int, ne1: int, ne2: int) -> Tensor:
        return self.new_tensor(type, (ne0, ne1, ne2))

    def new_tensor_4d(self, type: GGMLType, ne0: int, ne1: int, ne2: int, ne3: int) -> Tensor:
        return self.new_tensor(type, (ne0, ne1, ne2, ne3))

    def from_numpy(self, array: npt.ArrayLike, name: str = "") -> Tensor:
        """A new tensor with the array's type, shape (reversed) and values.

        Raises:
            TypeMismatch: ggml has no type for the array's dtype.
            AllocError: a ``no_alloc`` context.
        """
        array = np.asarray(array)
        type = from_numpy_dtype(array.dtype)
        if type is None:
            raise TypeMismatch(f"'{name}': ggml has no tensor type for NumPy's {array.dtype}")
        if self.no_alloc:
            raise AllocError("from_numpy() needs a context that owns data (no_alloc=False)")
        tensor = self.new_tensor(type, array.shape[::-1] or (1,))
        return tensor.set(array).set_name(name)

    def new_view(self, src: Tensor, ne: Dims, nb: Dims, offset: int = 0) -> Tensor:
        """A tensor that looks into ``src``'s memory, ``offset`` bytes after its first element.

        Views of views are flattened: ``view_src`` is always the root.

        Raises:
            ShapeError: the view leaves the memory of the root.
        """
        root = src.view_src or src
        view = Tensor(src.type, ne, nb)
        view.view_src = root
        view.view_offs = src.view_offs + offset
        if offset < 0 or min(nb) < 0 or view.view_offs + view.nbytes > root.nbytes:
            raise ShapeError(
                f"view of '{src.name}' {src.ne}: {view.nbytes} bytes at offset {view.view_offs} "
                f"leave its {root.nbytes} bytes"
            )
        place_view(view)
        self._account(TENSOR_OVERHEAD)
        self.tensors.append(view)
        return view

    def _account(self, size: int) -> None:
        size = round_up(size, 16)
        if self.mem_size is not None and self.used_mem + size > self.mem_size:
            raise AllocError(
                f"context is full: {size} bytes wanted, {self.mem_size - self.used_mem} of "
                f"{self.mem_size} left; raise mem_size (or leave it out)"
            )
        self.used_mem += size

    def _alloc(self, tensor: Tensor) -> None:
        size = round_up(tensor.nbytes, HOST.alignment)
        if self._arena is None or self._arena_used + size > self._arena.size:
            self._arena = HOST.alloc_buffer(max(size, _CHUNK))
            self._arena_used = 0
        tensor.buffer = self._arena
        tensor.data = self._arena.base + self._arena_used
        self._arena_used += size


def place_view(view: Tensor) -> None:
    """Give a view the memory of its root, if that has any."""
    root = view.view_src
    if root is not None and root.data:
        view.buffer = root.buffer
        view.data = root.data + view.view_offs


def _dims(ne: tuple[int, ...] | list[int]) -> Dims:
    if not 1 <= len(ne) <= MAX_DIMS:
        raise ShapeError(f"a tensor has 1 to {MAX_DIMS} dimensions, got {len(ne)}: {tuple(ne)}")
    if min(ne) < 0:
        raise ShapeError(f"sizes cannot be negative: {tuple(ne)}")
    a, b, c, d = (*map(int, ne), *(1,) * (MAX_DIMS - len(ne)))
    return a, b, c, d
