"""A check of bytes as weights: no NaN, no infinity, legal scales of blocks.

    n_bad, first = count_invalid(file.tensor_bytes(name), info.type)

All formats of ggml are covered, also those that no kernel computes with. NumPy only; allocates a
few bytes for each block.
Source: ggml, ``ggml_validate_row_data`` and the block structures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType
from .block import BLOCK_TYPES, Field, get, half

Mask = npt.NDArray[np.bool_]

_EXPONENTS = {  # of plain numbers: the bits that are all set in NaN and infinity
    GGMLType.F32: ("<u4", 0x7F800000),
    GGMLType.F16: ("<u2", 0x7C00),
    GGMLType.BF16: ("<u2", 0x7F80),
    GGMLType.F64: ("<u8", 0x7FF0000000000000),
}
_Q8_1 = (half(0), half(2))  # a format of activations, which has no declaration
_SPECIAL = {"f16": 0x7C00, "f32": 0x7F800000, "e8m0": 0xFF}


def count_invalid(data: npt.NDArray[np.uint8], type: GGMLType) -> tuple[int, int]:
    """Count the blocks (or numbers, of a plain type) that are not legal.

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
    f = BLOCK_TYPES.get(type)
    if f is not None and f.scale in _SPECIAL:
        fields: list[tuple[Field, int]] = [(f.d, _SPECIAL[f.scale])] + [
            (f.low, _SPECIAL["f16"])
        ] * bool(f.low)
    elif type is GGMLType.Q8_1:
        fields = [(field, _SPECIAL["f16"]) for field in _Q8_1]
    else:
        return None
    blocks = data.reshape(-1, type.type_size)
    masks = [_all_set(get(field, blocks)[:, 0], bits) for field, bits in fields]
    return masks[0] if len(masks) == 1 else masks[0] | masks[1]


def _all_set(values: npt.NDArray[Any], bits: int) -> Mask:
    wanted = values.dtype.type(bits)
    mask: Mask = np.equal(values & wanted, wanted)
    return mask
