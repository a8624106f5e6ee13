"""IQ1, IQ2 and IQ3: 256 codes that are entries of a codebook, with signs (read only).

    x[8 i + j] = d * (2 * s[8 i / sub] + 1) / 8 * +-GRID[q[i]][j]          # IQ2
    x[4 i + j] = d * (2 * s[4 i / 32] + 1) / unit * +-GRID[q[i]][j]        # IQ3
    x[8 i + j] = d * (2 * s[8 i / sub] + 1) * (GRID[q[i]][j] +- 1/8)       # IQ1

Source: ggml, ``dequantize_row_iq1_s`` and its siblings.
"""

from __future__ import annotations

from ..dtype import GGMLType
from .block import Bits, BlockType, Field, half, register
from .codebook import Entries

_TWO_BITS = (8, 25, 43, 0, -8, -25, -43, 0)
_EIGHTHS = (-7, 1, 9, 0, -9, -1, 7, 0)  # moved up and down by one
_THREE_BITS = (4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62)
_ODD = (1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15)


def _codebook(
    type: GGMLType,
    entries: Field,
    signs: Bits,
    steps: Bits,
    values: tuple[int, ...],
    unit: float = 1 / 8,
    d: Field = half(0),  # noqa: B008
) -> BlockType:
    sign_bits = signs.width
    codes = Entries(type, entries, (signs,), sign_bits, len(values) // 2)
    return register(
        BlockType(type, codes, d, values=values, unit=unit, steps=(steps,), odd_steps=True)
    )


def _row(width: int, byte: int, n: int, bit: int = 0, stride: int = 0, shift: int = 0) -> Bits:
    """``n`` integers one after the other, ``stride`` bits apart."""
    return Bits(width, 8 * byte + bit, (n,), (stride or width,), shift=shift)


# Of each 32 elements four codes, then four times 7 signs and a scale of 4 bits.
IQ2_XXS = _codebook(
    GGMLType.IQ2_XXS,
    (Bits(8, 8 * 2, (8, 4), (64, 8)),),
    Bits(7, 8 * 6, (8, 4), (64, 7)),
    _row(4, 6, 8, bit=28, stride=64),
    _TWO_BITS,
)
IQ2_XS = _codebook(
    GGMLType.IQ2_XS,
    (_row(9, 2, 32, stride=16),),
    _row(7, 2, 32, bit=9, stride=16),
    _row(4, 66, 16),
    _TWO_BITS,
)
IQ2_S = _codebook(
    GGMLType.IQ2_S,
    (_row(8, 2, 32), _row(2, 66, 32, shift=8)),
    _row(8, 34, 32),
    _row(4, 74, 16),
    _TWO_BITS,
)
# Of each 32 elements four times 7 signs and a scale of 4 bits.
IQ3_XXS = _codebook(
    GGMLType.IQ3_XXS,
    (_row(8, 2, 64),),
    Bits(7, 8 * 66, (8, 4), (32, 7)),
    _row(4, 66, 8, bit=28, stride=32),
    _THREE_BITS,
    unit=1 / 4,
)
IQ3_S = _codebook(
    GGMLType.IQ3_S,
    (_row(8, 2, 64), _row(1, 66, 64, shift=8)),
    _row(8, 74, 32),
    _row(4, 106, 8),
    _ODD,
    unit=1.0,
)
# Of each 32 elements a word: high bits of four codes, a scale of 3 bits, a sign.
IQ1_S = _codebook(
    GGMLType.IQ1_S,
    (_row(8, 2, 32), Bits(3, 8 * 34, (8, 4), (16, 3), shift=8)),
    Bits(1, 8 * 34 + 15, (8, 4), (16, 0)),
    _row(3, 34, 8, bit=12, stride=16),
    _EIGHTHS,
)
# Of each 16 elements a byte: twice the high bits of a code and a sign. The scale of a block is
# spread over the top four bits of the four words of scales. The codebook is IQ1_S's.
IQ1_M = _codebook(
    GGMLType.IQ1_M,
    (_row(8, 0, 32), _row(3, 32, 32, stride=4, shift=8)),
    _row(1, 32, 32, bit=3, stride=4),
    Bits(3, 8 * 48, (4, 4), (16, 3)),
    _EIGHTHS,
    d=tuple(Bits(4, 8 * 48 + 16 * i + 12, shift=4 * i) for i in range(4)),
)
