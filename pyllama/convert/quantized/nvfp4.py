"""Weights in NVFP4: 16 values of 4 bits with a scale of 8 bits, and a float32 for the whole matrix.

    add_nvfp4(parts, "mlp.up_proj.weight", MODELOPT)
    parts.decoded["mlp.up_proj.weight"].blocks.read()  # GGUF's blocks: the same bits elsewhere

In checkpoints, byte j of a group has the values 2j (lower half) and 2j + 1; in GGUF, the values j
and j + 8, and a block has the scales of four groups before their values. GGUF has the number for
the whole matrix beside it, as ``scale``; compressed-tensors stores its inverse.
Source: NVIDIA, ModelOpt's ``NVFP4QTensor``; compressed-tensors, ``nvfp4-pack-quantized``;
llama.cpp, ``_nvfp4_pack``.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from pyggml.dtype import GGMLType
from pyggml.quants.fp4 import VALUES

from ...errors import ModelError
from ...inputs.budget import shown
from ..files.decoded import Blocks, DecodedTensor, PackedBlocks
from ..files.stored import Floats, StoredTensor
from .parts import Parts, check_shape
from .scaled import FLOATS

_GROUP = 16
_GROUPS = GGMLType.NVFP4.block_size // _GROUP  # of a block
_NBYTES = GGMLType.NVFP4.type_size
_CHUNK = 1 << 16  # groups converted at a time
_FLOATS = np.array(VALUES, np.float32) / 2


class Naming(NamedTuple):
    """How a kind of checkpoint names the tensors of a weight.

    Attributes:
        codes, scale: endings added to the weight's name.
        input_scale: in place of ``weight`` at its end.
        inverted: the file has 1 / scale.
    """

    codes: str
    scale: str
    input_scale: str
    inverted: bool


MODELOPT = Naming("", "_scale_2", "input_scale", inverted=False)
COMPRESSED = Naming("_packed", "_global_scale", "input_global_scale", inverted=True)


def add_nvfp4(parts: Parts, name: str, naming: Naming) -> None:
    """Add the weight ``name``.

    Shape:
        NumPy order, codes [..., n_rows, n_columns / 2], weight_scale [..., n_rows, n_columns / 16],
        the scale of the matrix and that of its inputs: one number, or one for each of experts

    Raises:
        ModelError: a tensor is missing, or has another type or shape.
    """
    codes, scales = (
        parts.take(f"{name}{naming.codes}", "U8"),
        parts.take(f"{name}_scale", "F8_E4M3"),
    )
    rows = scales.shape
    if len(rows) < 2:
        raise ModelError(
            f"{scales.path}: tensor {shown(name)}_scale has the shape {list(rows)}, must be "
            "[..., n_rows, n_groups]"
        )
    check_shape(f"{name}{naming.codes}", codes, (*rows[:-1], rows[-1] * _GROUP // 2))
    factors = {"scale": _factors(parts, f"{name}{naming.scale}", naming, rows[:-2])}
    stem = name.removesuffix("weight")
    of_inputs = _factors(parts, f"{stem}{naming.input_scale}", naming, rows[:-2], may_be_0=True)
    factors["input_scale"] = of_inputs  # 0 of an expert that no calibration text has chosen
    found = {key: x for key, x in factors.items() if x is not None}
    blocks = None
    if rows[-1] % _GROUPS == 0:
        shape = (*rows[:-1], rows[-1] // _GROUPS)
        load = partial(_blocks, codes, scales, shape)
        blocks = PackedBlocks(shape, False, load, GGMLType.NVFP4, found)
    read = partial(_floats, codes, scales, found.get("scale"))
    whole = (*rows[:-1], rows[-1] * _GROUP)
    parts.add(name, DecodedTensor(whole, (codes, scales), read, blocks))


def _factors(
    parts: Parts, name: str, naming: Naming, experts: tuple[int, ...], *, may_be_0: bool = False
) -> Floats | None:
    """The numbers of a tensor, a vector; None if it is missing."""
    stored = parts.find(name, *FLOATS)
    if stored is None:
        return None
    if stored.size != 1 and not (len(experts) == 1 and stored.size == experts[0]):
        raise ModelError(
            f"{stored.path}: tensor {shown(name)} has the shape {list(stored.shape)}, must be one "
            "number, or one for each expert"
        )
    x = stored.read().reshape(-1)
    if naming.inverted:
        with np.errstate(divide="ignore", over="ignore"):
            np.reciprocal(x, out=x)
    if not (np.isfinite(x) & ((x >= 0) if may_be_0 else (x > 0))).all():
        what = "has no finite positive inverse" if naming.inverted else "is not a positive number"
        raise ModelError(f"{stored.path}: tensor {shown(name)} {what}")
    return x


def _blocks(codes: StoredTensor, scales: StoredTensor, shape: tuple[int, ...]) -> Blocks:
    """Return GGUF's blocks: the scales of four groups without their signs, then the values."""
    pairs = codes.raw().reshape(-1, _GROUP // 2)
    values = np.empty_like(pairs)
    half = _GROUP // 4  # bytes of 8 values
    for i in range(0, len(pairs), _CHUNK):
        part = pairs[i : i + _CHUNK]
        single = np.stack((part & 15, part >> 4), axis=-1).reshape(len(part), 2, 2 * half)
        values[i : i + _CHUNK] = single[:, 0] | single[:, 1] << 4
    first = scales.raw().reshape(-1, _GROUPS) & 127
    joined = np.concatenate((first, values.reshape(-1, _GROUPS * 2 * half)), axis=1)
    return joined.view(f"V{_NBYTES}").reshape(shape)


def _floats(codes: StoredTensor, scales: StoredTensor, factors: Floats | None) -> Floats:
    """Return the values, multiplied by all scales."""
    rows = scales.shape
    s = scales.read().reshape(-1, 1)
    pairs = codes.raw().reshape(-1, _GROUP // 2)
    out = np.empty((len(pairs), _GROUP), np.float32)
    for i in range(0, len(pairs), _CHUNK):
        part = pairs[i : i + _CHUNK]
        out[i : i + _CHUNK] = _FLOATS[np.stack((part & 15, part >> 4), axis=-1)].reshape(-1, _GROUP)
        out[i : i + _CHUNK] *= np.abs(s[i : i + _CHUNK])
    x = out.reshape(*rows[:-1], rows[-1] * _GROUP)
    if factors is not None:
        x *= factors.reshape(-1, *(1,) * (x.ndim - 1)) if factors.size > 1 else factors[0]
    return x
