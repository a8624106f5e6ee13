"""Numbers and functions that kernels read from memory, so that none is compiled for each format.

    facts = Facts({COLUMNS: 32}, {TILE: lambda: tile_kernel(Q4_0)})
    address = facts.address(TILE)                  # in a lowering: a parameter of the node
    columns = fact(address, COLUMNS)               # in a kernel
    call_address(fact(address, TILE), (w, x, out))

An indirect call costs some nanoseconds; what is called so takes hundreds at least.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ...jit import Kernel
from .abi import word_reader


class Facts:
    """A table of int64. Functions are compiled when they are first asked for.

    Args:
        numbers: the values of places.
        functions: what makes the function whose address is in a place; other places stay 0.
    """

    def __init__(
        self, numbers: Mapping[int, int], functions: Mapping[int, Callable[[], Kernel]]
    ) -> None:
        self._functions = functions
        self._words = np.zeros(1 + max(*numbers, *functions), np.int64)
        for place, number in numbers.items():
            self._words[place] = number

    def address(self, *functions: int) -> int:
        """Where the table is; these functions are compiled."""
        for place in functions:
            if place in self._functions and not self._words[place]:
                self._words[place] = self._functions[place]().address
        return int(self._words.ctypes.data)


fact = word_reader(0, 1)  # in jitted code: the number or address in a place of a table
