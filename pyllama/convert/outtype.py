"""Chooses the type of each tensor and converts its values chunk by chunk.

    type = tensor_type(planned, GGMLType.Q8_0)
    data = {planned.name: (tensor_chunks(planned, type), type, planned.shape[::-1])}
    write_gguf(path, metadata, data)

Source: llama.cpp, ``convert_hf_to_gguf.py``, ``prepare_tensors``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from pyggml.dtype import GGMLType
from pyggml.errors import QuantizeError
from pyggml.quants import quantize

from ..errors import ModelError
from ..file_types import FILE_TYPES
from ..graph.builder import SCALED
from ..graph.tensors import index_type
from .plan import ConvertedTensor

# --outtype -> (type of matrices, general.file_type)
OUTTYPES = {
    "f32": (GGMLType.F32, 0),
    "f16": (GGMLType.F16, 1),
    "bf16": (GGMLType.BF16, 32),
    "q8_0": (GGMLType.Q8_0, 7),
}
_NVFP4 = "nvfp4", 39  # a file's type that no other program quantizes to
_STAY_F32 = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "position_embd.weight",
    "token_types.weight",
    "attn_rel_b.weight",
    "altup_correct_coef.weight",
    "altup_predict_coef.weight",
    "indexer.proj.weight",
    "compressor_ape.weight",
    *(f"ssm_conv1d{part}.weight" for part in ("", "_q", "_k", "_v")),
    "shortconv.conv.weight",
    *(f"time_mix_{part}.weight" for part in ("first", "w1", "w2", "lerp_fused")),
    *(f"time_mix_decay_{part}.weight" for part in ("w1", "w2")),
)
_CHUNK = 1 << 22  # elements converted at a time
_F16_MAX = 65504.0
_INTEGERS = {"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8"}  # codes, not values


def auto_outtype(planned: Iterable[ConvertedTensor]) -> str:
    """Return "f16" if all matrices of the checkpoint (or their scales) are F16, else "bf16"."""
    dtypes = {dtype for one in planned if len(one.shape) > 1 for dtype in one.dtypes}
    return "f16" if dtypes - _INTEGERS == {"F16"} else "bf16"


def file_type(planned: Iterable[ConvertedTensor], outtype: str) -> tuple[str, int]:
    """Return the name of the file's type, and its number for ``general.file_type``."""
    matrices, number = OUTTYPES[outtype]
    types = {tensor_type(one, matrices) for one in planned}
    if matrices is not GGMLType.Q8_0 and GGMLType.NVFP4 in types:
        return _NVFP4
    if matrices is GGMLType.Q8_0 or GGMLType.MXFP4 not in types:
        return outtype, number
    mixed = FILE_TYPES["MXFP4_MOE"]
    assert mixed.number is not None
    return mixed.name.lower(), mixed.number


def scaled_or_floats(one: ConvertedTensor) -> ConvertedTensor:
    """A tensor, without the checkpoint's blocks if they have scales that no graph reads."""
    name = re.sub(r"^blk\.\d+\.", "blk.{i}.", one.name.removesuffix(".weight"))
    return replace(one, blocks=(), scales={}) if one.scales and name not in SCALED else one


def with_scales(planned: Iterable[ConvertedTensor], matrices: GGMLType) -> list[ConvertedTensor]:
    """The tensors, each with its scales after it where it is written as the checkpoint's blocks."""
    found = []
    for one in planned:
        found.append(one)
        if tensor_type(one, matrices) is not one.block_type:
            continue
        for end, x in one.scales.items():
            name = f"{one.name.removesuffix('.weight')}.{end}"
            found.append(ConvertedTensor(name, x.shape, (partial(np.asarray, x),)))
    return found


def stays_f32(name: str) -> bool:
    """Whether a matrix is stored as F32 in every file."""
    return name.endswith(_STAY_F32)


def tensor_type(planned: ConvertedTensor, matrices: GGMLType) -> GGMLType:
    """Return the type of a tensor, given the type of matrices."""
    name, shape = planned.name, planned.shape
    indices = index_type(name)
    if indices is not None:
        return indices
    if len(shape) < 2 or not name.endswith(".weight") or stays_f32(name):
        return GGMLType.F32
    if planned.blocks and matrices is not GGMLType.F32:
        return planned.block_type
    return GGMLType.F16 if shape[-1] % matrices.block_size else matrices


def tensor_chunks(planned: ConvertedTensor, type: GGMLType) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes of a tensor in chunks, read and converted lazily. Raises: ModelError."""
    if planned.blocks and type is planned.block_type:
        for part in planned.blocks:
            blocks = part()
            for some in blocks.reshape(-1, *blocks.shape[-2:]):  # copies what is not contiguous
                yield np.ascontiguousarray(some).view(np.uint8).reshape(-1)
        return
    for part in planned.parts:
        values = part()
        n = values.shape[-1] if values.ndim else 1
        rows = values.reshape(-1, n) if values.size else values.reshape(0, 1)
        step = max(1, _CHUNK // n) if n else 1
        for i in range(0, len(rows), step):
            yield _convert(planned.name, rows[i : i + step], type)


def _convert(name: str, rows: npt.NDArray[np.float32], type: GGMLType) -> npt.NDArray[np.uint8]:
    if type in (GGMLType.I64, GGMLType.I32):
        kind = "<i8" if type is GGMLType.I64 else "<i4"
        return np.ascontiguousarray(rows, kind).view(np.uint8).reshape(-1)
    if type is GGMLType.F16:
        peak = np.abs(rows).max()
        if _F16_MAX < peak < np.inf:  # infinity and NaN are representable
            raise ModelError(
                f"tensor {name!r} has values up to {peak:.3g}, too large for f16: use "
                "`outtype='bf16'` or f32"
            )
    try:
        return quantize(rows, type).reshape(-1)
    except QuantizeError as error:
        raise ModelError(f"tensor {name!r}: {error}") from None
