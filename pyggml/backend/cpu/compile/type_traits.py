"""Tables of numbers and functions of a format, which kernels read from memory.

    traits = TypeTraits({COLUMNS: 32}, {TILE: lambda: tile_kernel(Q4_0)})
    address = low.traits(traits, TILE)             # in a lowering: a value of the node
    columns = trait(address, COLUMNS)              # in a kernel
    call_address(trait(address, TILE), (w, x, out))

So a kernel is compiled once and not for each format. An indirect call costs a few nanoseconds, the
functions called in this way take hundreds at least.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ....compiler.jit import CpuKernel
from ..abi import word_reader


class TypeTraits:
    """A table of int64, of which a place has a number or the address of a function.

    Args:
        numbers: the number in each place.
        functions: for each place, a call that makes its function. Its place is 0 until ``fill``.

    Attributes:
        address: of the table.
    """

    def __init__(
        self, numbers: Mapping[int, int], functions: Mapping[int, Callable[[], CpuKernel]]
    ) -> None:
        self._functions = functions
        self._words = np.zeros(1 + max([*numbers, *functions]), np.int64)
        for place, number in numbers.items():
            self._words[place] = number
        self.address = int(self._words.ctypes.data)

    def missing(self, place: int) -> CpuKernel | None:
        """The function of a place that is still 0; None if it is filled, or has a number."""
        if self._words[place] or place not in self._functions:
            return None
        return self._functions[place]()

    def fill(self, place: int, function: CpuKernel) -> None:
        """Put a function into its place; compiles it if that is not done."""
        self._words[place] = function.address


trait = word_reader(0, 1)  # in jitted code: what a place of a table has
