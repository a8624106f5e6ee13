"""The matrix unit of an instruction set: it multiplies a group of rows with many tokens at once.

    unit = matrix_unit()                           # a module such as ``amx``, None: there is none
    if unit and 0 < unit.least_tokens(w.type, many) <= n_tokens: ...

A unit is a file of this folder with the names of ``MatrixUnit``, a line here and a test. That of
``amx`` has registers of its own, that of ``unpacked`` is vector instructions. Kernels do not know
which it is: ``kernels/matrix/weights.py`` calls it by address.
"""

from __future__ import annotations

from typing import Any, Protocol

from ....compiler.jit import intrinsic_from_ir
from ....dtype import GGMLType
from . import amx, unpacked
from .isa import vectors

Value = Any
TOKENS = amx.TOKENS  # chunks begin at multiples of so many
SPARE_TOKENS = amx.SPARE_TOKENS  # so many after the last one are read, not used
# Of the unit that has registers to switch on, and that splits activations
use_tiles, split_row, split_row_bytes = amx.use_tiles, amx.split_row, amx.split_row_bytes


@intrinsic_from_ir(literals=2)
def tiles(
    b: Value, kind: int, hint: int, w: Value, x: Value, stride: Value, out: Value, n_blocks: Value,
    tokens: Value, ahead: Value, panel: Value,
) -> None:  # fmt: skip
    """Multiply by the unit of the instruction set.

    Kernels call it as a name of a module, since a compiled closure may hold numbers only. So the
    unit is chosen when its code is emitted.
    """
    unit: Any = matrix_unit()
    unit.tiles(b, kind, hint, w, x, stride, out, n_blocks, tokens, ahead, panel)


class MatrixUnit(Protocol):
    """The names that the file of a matrix unit defines.

    Attributes:
        tiles: emits the code that multiplies; see ``amx.tiles``. For quantized weights it has the
            bits of ``q_tile``.
        is_switched: whether a thread switches it on for a format, and off, by ``use_tiles``.
    """

    tiles: Any
    is_switched: bool

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

    def panel_bytes(self, kind: int, n_columns: int) -> int:
        """Bytes of a thread's scratch for an unpacked group of 16 rows."""
        ...


def matrix_unit() -> MatrixUnit | None:
    """That of the instruction set for which kernels are compiled."""
    v = vectors()
    return amx if v.has_tiles else unpacked if v.u4_is_i16 else None
