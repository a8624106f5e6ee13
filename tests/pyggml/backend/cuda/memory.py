"""Memory of a simulated GPU at real addresses of the host, every access of which is checked.

    memory = Memory()
    allocation = memory.alloc(1024)
    allocation.view(np.dtype(np.float32))[:4] = 1
    memory.find(allocation.base + 16, 4)        # the allocation; KernelFault outside of all

An allocation has guard bytes on both sides and starts as NaNs (all bytes 0xFF). Freed memory is
kept from reuse for a while, so that an access by an old address is a fault.
"""

from __future__ import annotations

import bisect
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.errors import ComputeError

Array = npt.NDArray[Any]
POISON, GUARD = 0xFF, 0xC5
ALIGNMENT = 256
N_GUARD = 256
_KEPT_BYTES = 64 << 20
WIDE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


class KernelFault(ComputeError):
    """A kernel that a GPU would stop, or that would give an unpredictable result."""


class Space:
    """Bytes that kernels address, as arrays of any type.

    Attributes:
        pinned: they are of the host.
    """

    def __init__(self, n_bytes: int, *, pinned: bool = False) -> None:
        self.pinned = pinned
        self._whole = np.full(n_bytes + 2 * N_GUARD + ALIGNMENT, GUARD, np.uint8)
        first = N_GUARD + -(int(self._whole.ctypes.data) + N_GUARD) % ALIGNMENT
        self.size = n_bytes
        self.bytes = self._whole[first : first + n_bytes]
        self.bytes[:] = POISON
        self.base = int(self.bytes.ctypes.data)
        self.guards = (self._whole[:first], self._whole[first + n_bytes :])
        self._views: dict[Any, Array] = {}

    def view(self, dtype: Any) -> Array:
        """As many whole elements as there are."""
        view = self._views.get(dtype)
        if view is None:
            size = np.dtype(dtype).itemsize
            view = self._views[dtype] = self.bytes[: self.size // size * size].view(dtype)
        return view

    def load(self, offsets: Array, dtype: Any, n: int) -> list[Array]:
        """``n`` neighbours from each byte offset, one array for each of them."""
        if n == 1:
            return [self.view(dtype).take(offsets // dtype.itemsize)]
        size = n * dtype.itemsize
        parts = self.view(WIDE[size]).take(offsets // size).view(dtype).reshape(-1, n)
        return list(np.ascontiguousarray(parts.T))

    def store(self, offsets: Array, values: list[Array], dtype: Any) -> None:
        n = len(values)
        size = n * dtype.itemsize
        if n == 1:
            self.view(dtype)[offsets // size] = values[0]
            return
        parts = np.empty((offsets.size, n), dtype)
        for i, value in enumerate(values):
            parts[:, i] = value
        self.view(WIDE[size])[offsets // size] = parts.view(WIDE[size])[:, 0]

    def guards_are_whole(self) -> bool:
        return all(bool((guard == GUARD).all()) for guard in self.guards)


class Memory:
    """What the kernels of a device may access.

    Attributes:
        limit, used: bytes of the device, without pinned memory of the host.
        peak: the most bytes in use so far.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = self.peak = 0
        self._bases: list[int] = []
        self._spaces: list[Space] = []
        self._freed: deque[Space] = deque()

    def alloc(self, n_bytes: int, *, pinned: bool = False) -> Space:
        space = Space(n_bytes, pinned=pinned)
        self.add(space)
        self.used += 0 if pinned else n_bytes
        self.peak = max(self.peak, self.used)
        return space

    def add(self, space: Space) -> None:
        i = bisect.bisect(self._bases, space.base)
        self._bases.insert(i, space.base)
        self._spaces.insert(i, space)

    def free(self, address: int) -> None:
        """
        Raises:
            KernelFault: nothing was allocated at that address, or its guard bytes were written.
        """
        i = bisect.bisect_left(self._bases, address)
        if i == len(self._bases) or self._bases[i] != address:
            raise KernelFault(f"free of {address:#x}, which is not the address of an allocation")
        space = self._spaces[i]
        self._check(space)
        del self._bases[i], self._spaces[i]
        self.used -= 0 if space.pinned else space.size
        space.bytes[:] = POISON
        self._freed.append(space)
        while sum(s.size for s in self._freed) > _KEPT_BYTES:
            self._freed.popleft()

    @property
    def n_pinned(self) -> int:
        """The number of allocations of the host."""
        return sum(space.pinned for space in self._spaces)

    def lookup(self, address: int) -> Space | None:
        """The allocation that has an address."""
        i = bisect.bisect(self._bases, address) - 1
        if i < 0 or address >= self._bases[i] + self._spaces[i].size:
            return None
        return self._spaces[i]

    def find(self, address: int, n_bytes: int) -> Space:
        """The allocation that has all of some bytes.

        Raises:
            KernelFault: there is none.
        """
        i = bisect.bisect(self._bases, address) - 1
        if i >= 0 and address + n_bytes <= self._bases[i] + self._spaces[i].size:
            return self._spaces[i]
        raise KernelFault(f"{n_bytes} bytes at {address:#x}: {self.describe(address)}")

    def describe(self, address: int) -> str:
        """Where an address is that an access must not have."""
        for space in self._freed:
            if space.base <= address < space.base + space.size:
                return f"byte {address - space.base} of {space.size} that were freed"
        i = bisect.bisect(self._bases, address) - 1
        if i < 0:
            return "before all allocations"
        return f"byte {address - self._bases[i]} of an allocation of {self._spaces[i].size}"

    def check(self) -> None:
        """
        Raises:
            KernelFault: guard bytes of an allocation were written.
        """
        for space in self._spaces:
            self._check(space)

    def _check(self, space: Space) -> None:
        if not space.guards_are_whole():
            raise KernelFault(f"bytes next to an allocation of {space.size} were written")
