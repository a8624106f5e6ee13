"""Work memory of a program, such as quantized activations, in slots that later launches reuse.

    work = WorkMemory(store)
    out = work.take(720, before=10)                # a slot not used by launch 10 or later ones
    out.use(11)                                    # launch 11 reads or writes it

``Lowering.take`` never gives one node the same slot twice. The program orders launches by byte
ranges, so reuse is safe when launches run at the same time. Programs of one backend share a store,
since only one of them runs at a time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....buffer import zeroed
from ....errors import AllocError

_MIN_BYTES = 4096


class WorkStore:
    """Memory by size class (powers of two), kept as long as the backend."""

    def __init__(self) -> None:
        self._memory: dict[int, list[npt.NDArray[np.uint8]]] = {}

    def memory(self, size: int, i: int) -> npt.NDArray[np.uint8]:
        """The ``i``-th piece of size class ``size``."""
        pieces = self._memory.setdefault(size, [])
        while len(pieces) <= i:
            pieces.append(zeroed(size))
        return pieces[i]


@dataclass(eq=False)
class _Slot:
    memory: npt.NDArray[np.uint8]
    last_use: int = -1
    holder: WorkRange | None = None  # the last range that took it


@dataclass(eq=False)
class WorkRange:
    """A slot of work memory, as long as it holds one result."""

    address: int
    size: int
    _slot: _Slot

    @property
    def intact(self) -> bool:
        """Whether no other range has taken the slot since."""
        return self._slot.holder is self

    def keep(self) -> None:
        """Give the slot to no other range."""
        self._slot.last_use = sys.maxsize

    def use(self, launch: int) -> tuple[int, int]:
        """The range's first byte and end, after noting that ``launch`` reads or writes it.

        Raises:
            AllocError: another range has taken the slot since.
        """
        if not self.intact:
            raise AllocError(f"work memory for launch {launch} was given to another launch")
        self._slot.last_use = max(self._slot.last_use, launch)
        return self.address, self.address + self.size


class WorkMemory:
    """The slots of one program."""

    def __init__(self, store: WorkStore) -> None:
        self._store = store
        self._slots: dict[int, list[_Slot]] = {}

    def take(self, size: int, before: int) -> WorkRange:
        """A range of at least ``size`` bytes in a slot that launch ``before`` and later ones do not
        use."""
        class_bytes = max(_MIN_BYTES, 1 << (size - 1).bit_length())
        slots = self._slots.setdefault(class_bytes, [])
        slot = next((s for s in slots if s.last_use < before), None)
        if slot is None:
            slot = _Slot(self._store.memory(class_bytes, len(slots)))
            slots.append(slot)
        slot.last_use = before
        slot.holder = WorkRange(int(slot.memory.ctypes.data), size, slot)
        return slot.holder

    def memory(self) -> list[npt.NDArray[np.uint8]]:
        """All memory that was taken; a program must keep it alive."""
        return [s.memory for slots in self._slots.values() for s in slots]
