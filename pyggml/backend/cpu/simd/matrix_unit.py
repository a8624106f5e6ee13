"""The matrix unit of an instruction set: it multiplies a group of rows with many tokens at once.

    unit = matrix_unit()                           # a module such as ``amx``, None: there is none
    if unit and 0 < unit.least_tokens(w.type, many) <= n_tokens: ...

A unit is a file of this folder with the names of ``MatrixUnit``, a line here and a test. Kernels do
not know which it is: ``kernels/matrix/weights.py`` calls it by address.
"""

from __future__ import annotations

from typing import Any, Protocol

from ....dtype import GGMLType
from . import amx
from .isa import vectors

TOKENS = amx.TOKENS  # chunks begin at multiples of so many
SPARE_TOKENS = amx.SPARE_TOKENS  # so many after the last one are read, not used
# What kernels call. They are names of a module, since a compiled closure may hold numbers only:
# another unit is chosen here, when its code is emitted.
tiles, use_tiles, split_row = amx.tiles, amx.use_tiles, amx.split_row


class MatrixUnit(Protocol):
    """The names that the file of a matrix unit defines.

    Attributes:
        tiles: the intrinsic that multiplies; see ``amx.tiles``. For quantized weights it has the
            bits of ``q_tile``.
        use_tiles: the intrinsic that switches this thread's unit on for a format, or off (0).
        split_row: the intrinsic that makes the activations of a format that ``splits`` them.
    """

    tiles: Any
    use_tiles: Any
    split_row: Any

    def least_tokens(self, type: GGMLType, many: bool) -> int:
        """The fewest tokens for which a format's matmuls use it; 0 if they never do.

        Args:
            many: whether the op says that it has many tokens.
        """
        ...

    def step(self, type: GGMLType) -> int:
        """The number of tokens of which it multiplies multiples."""
        ...

    def splits(self, type: GGMLType, many: bool) -> bool:
        """Whether it multiplies any number of tokens, by activations of ``split_row``."""
        ...

    def split_row_bytes(self, n: int) -> int:
        """Bytes of ``n`` activations that ``split_row`` made."""
        ...

    def panel_bytes(self, kind: int, n_columns: int) -> int:
        """Bytes of a thread's scratch for an unpacked group of 16 rows."""
        ...


def matrix_unit() -> MatrixUnit | None:
    """That of the instruction set for which kernels are compiled."""
    return amx if vectors().has_tiles else None
