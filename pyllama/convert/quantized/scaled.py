"""Weights of 8 bits that are multiplied by scales: one, one per row, or one per block.

    add_scaled(parts, "model.norm.weight", scale_name, block=(128, 128))
    parts.decoded["model.norm.weight"].read()      # float32, weight * scale

Source: llama.cpp, ``dequant_model``; DeepSeek-V3, ``weight_dequant``; compressed-tensors,
``dequantize``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from pyggml.rounding import ceil_div

from ...errors import ModelError
from ...inputs.budget import shown
from ..files.decoded import DecodedTensor
from ..files.stored import Floats, StoredTensor
from .parts import Parts, check_shape

EIGHT_BITS = ("F8_E4M3", "F8_E5M2", "I8")
FLOATS = ("F32", "F16", "BF16", "F8_E8M0")
# scales of activations and caches, which a file of weights does not need
UNUSED = (
    r"[._]activation_scale", r"\.(?:input|output|k|v|q)_scale", r"\.(?:input|output)_zero_point",
    r"\.qscale_act",
)  # fmt: skip

Block = tuple[int, int]


def add_scaled(parts: Parts, name: str, scale_name: str, block: Block | None) -> None:
    """Add the weight ``name`` multiplied by its scale.

    Args:
        block: rows and columns of a scale; None: one for a row or for all.

    Raises:
        ModelError: the weight is missing, of another type, or its scale has another shape.
    """
    weight, scale = parts.take(name, *EIGHT_BITS), parts.take(scale_name, *FLOATS)
    zero = parts.find(f"{name}_zero_point", "I8")
    block = None if scale.size == 1 or len(weight.shape) < 2 else block
    _check_scale(scale_name, weight, scale, block)
    if zero is not None:
        check_shape(f"{name}_zero_point", zero, scale.shape)
    sources = (weight, scale) if zero is None else (weight, scale, zero)
    parts.add(name, DecodedTensor(weight.shape, sources, partial(_scaled, block, *sources)))


def _check_scale(name: str, weight: StoredTensor, scale: StoredTensor, block: Block | None) -> None:
    if scale.size == 1:
        return
    if block is not None:
        rows, columns = map(ceil_div, weight.shape[-2:], block)
        check_shape(name, scale, (*weight.shape[:-2], rows, columns))
        return
    fits = len(scale.shape) <= len(weight.shape) and all(
        n in (1, m) for n, m in zip(scale.shape, weight.shape, strict=False)
    )
    if not fits:
        raise ModelError(
            f"{scale.path}: tensor {shown(name)} has the shape {list(scale.shape)}, must be one "
            f"number, or one for each row of {list(weight.shape)}"
        )


def _scaled(
    block: Block | None, weight: StoredTensor, scale: StoredTensor, zero: StoredTensor | None = None
) -> Floats:
    """Return (weight - zero point) * scale."""
    x = weight.read()
    if zero is not None:
        _apply(np.subtract, x, zero.read(), block)
    _apply(np.multiply, x, scale.read(), block)
    return x


def _apply(operation: np.ufunc, x: Floats, s: Floats, block: Block | None) -> None:
    """Combine ``x`` in place with numbers of blocks, of rows, or one for all."""
    if block is None:
        operation(x, s.reshape(() if s.size == 1 else s.shape + (1,) * (x.ndim - s.ndim)), out=x)
        return
    rows, columns = block
    s = np.repeat(s, columns, axis=-1)[..., : x.shape[-1]]  # [..., row blocks, n_columns]
    for i in range(s.shape[-2]):
        part = x[..., i * rows : (i + 1) * rows, :]
        operation(part, s[..., i : i + 1, :], out=part)
