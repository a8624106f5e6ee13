"""The matrix unit of an instruction set: it multiplies a group of rows with many tokens at once.

    unit = matrix_unit()                           # a module such as ``amx``, None: there is none
    if unit and 0 < unit.least_tokens(w.type) <= n_tokens: ...

A unit is a file of this folder with the names of ``MatrixUnit``, a line here and a test. Kernels do
not know which it is: ``kernels/matrix/weights.py`` calls it by address.
"""

from __future__ import annotations

from typing import Any, Protocol

from ....dtype import GGMLType
from . import amx
from .isa import vectors

TOKENS = amx.TOKENS  # a unit multiplies a multiple of so many
# What kernels call. They are names of a module, since a compiled closure may hold numbers only:
# another unit is chosen here, when its code is emitted.
tiles, use_tiles = amx.tiles, amx.use_tiles


class MatrixUnit(Protocol):
    """The names that the file of a matrix unit defines.

    Attributes:
        tiles: the intrinsic that multiplies, with the bits of ``q_tile``; see ``amx.tiles``.
        use_tiles: the intrinsic that switches this thread's unit on (1) or off (0).
    """

    tiles: Any
    use_tiles: Any

    def least_tokens(self, type: GGMLType) -> int:
        """The fewest tokens for which a format's matmuls use it; 0 if they never do."""
        ...

    def panel_bytes(self, kind: int, n_columns: int) -> int:
        """Bytes of a thread's scratch for an unpacked group of 16 rows."""
        ...


def matrix_unit() -> MatrixUnit | None:
    """That of the instruction set for which kernels are compiled."""
    return amx if vectors().has_tiles else None
