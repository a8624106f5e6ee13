"""Which bytes are weights at all: no NaN, no infinity, legal scales of blocks.

    n_bad, first = count_invalid(file.tensor_bytes(name), info.type)

Every format that ggml has is covered, those too that nothing here computes with. NumPy only; it
allocates a few bytes for each block.
Source: ggml, ``ggml_validate_row_data`` and the block structures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType

Mask = npt.NDArray[np.bool_]

_EXPONENTS = {  # of plain numbers: the bits that are all set in NaN and infinity
    GGMLType.F32: ("<u4", 0x7F800000),
    GGMLType.F16: ("<u2", 0x7C00),
    GGMLType.BF16: ("<u2", 0x7F80),
    GGMLType.F64: ("<u8", 0x7FF0000000000000),
}
_F16_SCALES = {  # where in a block the float16 scales (and minima) stand, in bytes
    GGMLType.Q4_0: (0,),
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_0: (0,),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q8_0: (0,),
    GGMLType.Q8_1: (0, 2),
    GGMLType.Q2_K: (80, 82),
    GGMLType.Q3_K: (108,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
    GGMLType.IQ1_S: (0,),
    GGMLType.IQ2_XXS: (0,),
    GGMLType.IQ2_XS: (0,),
    GGMLType.IQ2_S: (0,),
    GGMLType.IQ3_XXS: (0,),
    GGMLType.IQ3_S: (0,),
    GGMLType.IQ4_NL: (0,),
    GGMLType.IQ4_XS: (0,),
    GGMLType.TQ1_0: (52,),
    GGMLType.TQ2_0: (64,),
}
_E8M0_NAN = 0xFF
_IQ1_M_SCALE_BYTES = [53, 55]  # their top halves are the high byte of a float16


def count_invalid(data: npt.NDArray[np.uint8], type: GGMLType) -> tuple[int, int]:
    """How many blocks (or numbers, of a plain type) are not legal, and which is the first.

    Args:
        data: whole blocks.

    Returns:
        (count, index of the first or -1).
    """
    bad = _invalid(np.ascontiguousarray(data), type)
    n = 0 if bad is None else int(np.count_nonzero(bad))
    return n, int(np.argmax(bad)) if bad is not None and n else -1


def _invalid(data: npt.NDArray[np.uint8], type: GGMLType) -> Mask | None:
    """A mask over the blocks; None where every byte is legal (integers, NVFP4)."""
    if type in _EXPONENTS:
        code, bits = _EXPONENTS[type]
        return _all_set(data.view(code), bits)
    blocks = data.reshape(-1, type.type_size)
    if type in _F16_SCALES:
        masks = [_all_set(blocks[:, at + 1], 0x7C) for at in _F16_SCALES[type]]  # the high bytes
        return masks[0] if len(masks) == 1 else masks[0] | masks[1]
    if type is GGMLType.IQ1_M:
        high = blocks[:, _IQ1_M_SCALE_BYTES]  # [n, 2]
        return _all_set(high[:, 1] & 0xF0 | high[:, 0] >> 4, 0x7C)
    if type is GGMLType.Q8_K:
        return _all_set(blocks[:, :4].copy().view("<u4")[:, 0], 0x7F800000)
    if type is GGMLType.MXFP4:
        return _all_set(blocks[:, 0], _E8M0_NAN)
    return None


def _all_set(values: npt.NDArray[Any], bits: int) -> Mask:
    wanted = values.dtype.type(bits)
    mask: Mask = np.equal(values & wanted, wanted)
    return mask
