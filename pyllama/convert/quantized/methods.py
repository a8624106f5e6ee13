"""The quantization methods of checkpoints: each is a function that decodes a table of tensors.

    tensors = decode_checkpoint(folder, read_checkpoint(folder), config)
    tensors["model.layers.0.mlp.up_proj.weight"].read()      # float32, whatever was stored

``METHODS`` lists them. Only shapes and GPTQ's small biases are read here: a tensor is decoded when
it is written, one at a time.
Source: transformers, ``quantizers``; llama.cpp, ``dequant_model``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import ModelError
from ...inputs.budget import shown
from ...mapping.rules import Config
from ..files.decoded import CheckpointTensor
from ..files.folder import Folder
from ..files.stored import StoredTensor
from .mxfp4 import add_mxfp4
from .nvfp4 import COMPRESSED, MODELOPT, add_nvfp4
from .packed import Packing, add_grouped, add_rows, awq
from .parts import Parts
from .scaled import EIGHT_BITS, UNUSED, Block, add_scaled

_SCALES = "(?:_scale_inv|_scale)"
_MAX_BIAS = 1 << 20  # elements that are read while the conversion is planned


def decode_checkpoint(
    folder: Folder, stored: Mapping[str, StoredTensor], config: Config
) -> Mapping[str, CheckpointTensor]:
    """Return the tensors of a checkpoint as if it had not been quantized.

    Args:
        config: its ``quantization_config``, if it has one, names the method; else ModelOpt's
            ``hf_quant_config.json`` does.

    Raises:
        ModelError: the method is unknown or a variant not supported, or tensors do not fit.
    """
    settings = _settings(folder, config)
    if settings is None:
        return stored
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if not isinstance(method, str) or method not in METHODS:
        raise ModelError(
            f"{folder.path}: the weights are quantized by the method {shown(method)}, supported "
            f"are {', '.join(METHODS)}: convert the original checkpoint, in 16 or 32 bits"
        )
    parts = Parts(stored, settings)
    try:
        METHODS[method](parts)
    except ModelError as error:
        where = "" if str(error).startswith(str(folder.path)) else f"{folder.path}: "
        raise ModelError(f"{where}{error} (quantized by {method})") from None
    return parts.tensors


def _settings(folder: Folder, config: Config) -> Any:
    """The settings of the quantization; None if there is none."""
    settings = config.get("quantization_config")
    settings = config.get("compression_config") if settings is None else settings
    own = folder.json("hf_quant_config.json")
    quantization, producer = own.get("quantization"), own.get("producer")
    if not isinstance(quantization, dict) or not quantization.get("quant_algo"):
        return settings
    if settings is None:
        name = producer.get("name") if isinstance(producer, dict) else None
        return {**quantization, "quant_method": name}
    return {**quantization, **settings} if isinstance(settings, dict) else settings


def _fp8(parts: Parts) -> None:
    """DeepSeek's ``weight_scale_inv`` of blocks, and ``weight_scale`` of rows or tensors.

    DeepSeek-V4's ``scale`` is of blocks too, or of an expert in MXFP4 as bytes with a sign.
    """
    block = _block(parts.settings.get("weight_block_size"), "weight_block_size")
    for scale, stem in parts.names(r"\.scale"):
        name = f"{stem}.weight"
        weight = parts.stored.get(name)
        if weight is None:
            continue
        of_rows = parts.stored[scale].shape[:-1] == weight.shape[:-1]
        if weight.dtype == "I8" and of_rows and weight.shape[-1] > 1:
            add_mxfp4(parts, name, name, scale)
        elif weight.dtype in EIGHT_BITS:
            add_scaled(parts, name, scale, block)
    _add_all_scaled(parts, block)


def _modelopt(parts: Parts) -> None:
    """FP8 with a scale of a tensor or row, and NVFP4, also of other layers in one checkpoint."""
    algorithm = parts.settings.get("quant_algo", "FP8")
    if algorithm not in ("FP8", "NVFP4", "MIXED_PRECISION"):
        raise ModelError(
            f"quant_algo is {shown(algorithm)}, supported are FP8, NVFP4, MIXED_PRECISION"
        )
    for _, name in parts.names("_scale"):
        if name in parts.stored and parts.stored[name].dtype == "U8":
            add_nvfp4(parts, name, MODELOPT)
    _add_all_scaled(parts, None)


def _add_all_scaled(parts: Parts, block: Block | None) -> None:
    parts.drop(*UNUSED)
    for scale, name in parts.names(_SCALES):
        if name in parts.stored:
            add_scaled(parts, name, scale, block)
    for scale, stem in parts.names(r"\.qscale_weight"):  # Mistral's own name
        add_scaled(parts, f"{stem}.weight", scale, block)
    for name, tensor in parts.stored.items():
        if tensor.dtype in EIGHT_BITS:
            raise ModelError(f"{tensor.path}: tensor {shown(name)} has no scale")


def _block(value: Any, name: str) -> Block | None:
    """Return rows and columns of a block: [128, 128], or "128x128"."""
    if value is None:
        return None
    sizes = value.split("x") if isinstance(value, str) else value
    if (
        isinstance(sizes, list)
        and len(sizes) == 2
        and all(re.fullmatch(r"[1-9]\d{0,8}", str(n)) for n in sizes)
    ):
        return int(sizes[0]), int(sizes[1])
    raise ModelError(f"{name} is {shown(value)}, must be rows and columns of a block")


def _compressed_tensors(parts: Parts) -> None:
    weights, kind = _weights(parts.settings), parts.settings.get("format")
    sparsity = parts.settings.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("format", "dense") != "dense":
        raise ModelError(f"weights are compressed as sparse: {shown(sparsity['format'])}")
    if kind in ("float-quantized", "int-quantized", "naive-quantized"):
        _add_all_scaled(parts, _block(weights.get("block_structure"), "block_structure"))
    elif kind in ("pack-quantized", "mxfp4-pack-quantized", "nvfp4-pack-quantized"):
        parts.drop(*UNUSED)
        for packed, name in parts.names("_packed"):
            if kind == "pack-quantized":
                add_rows(parts, name, _packing(weights))
            elif kind == "mxfp4-pack-quantized":
                add_mxfp4(parts, name, packed, f"{name}_scale")
            else:
                add_nvfp4(parts, name, COMPRESSED)
    elif kind != "dense":
        raise ModelError(
            f"format is {shown(kind)}, supported are float-quantized, int-quantized, "
            "naive-quantized, pack-quantized, mxfp4-pack-quantized, nvfp4-pack-quantized, dense"
        )


def _weights(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of weights, which all groups must share."""
    groups = settings.get("config_groups")
    found: list[Any] = [
        group.get("weights") if isinstance(group, dict) else None
        for group in (groups.values() if isinstance(groups, dict) else ())
    ]
    if not found or any(weights != found[0] for weights in found[1:]):
        raise ModelError("config_groups has no group, or groups whose weights differ")
    if not isinstance(found[0], dict):
        raise ModelError(f"config_groups has weights that are {shown(found[0])}")
    return found[0]


def _packing(weights: Mapping[str, Any]) -> Packing:
    kind, strategy = weights.get("type", "int"), weights.get("strategy")
    if kind != "int" or strategy not in ("group", "channel", "tensor"):
        raise ModelError(f"packed weights of type {shown(kind)}, strategy {shown(strategy)}")
    size = _size(weights, "group_size") if strategy == "group" else -1
    return Packing(_bits(weights, "num_bits", range(1, 9)), size, along_inputs=True)


def _gptq(parts: Parts) -> None:
    """AutoGPTQ's files (v1), whose zeros are stored less 1, and GPTQModel's (v2)."""
    version = parts.settings.get("checkpoint_format") or "gptq"
    if version not in ("gptq", "gptq_v2") or parts.settings.get("is_marlin_format"):
        raise ModelError(f"checkpoint_format is {shown(version)}, supported are gptq, gptq_v2")
    if parts.settings.get("dynamic"):
        raise ModelError("settings that differ between layers (dynamic) are not supported")
    bits, size = _bits(parts.settings, "bits", (2, 4, 8)), _size(parts.settings, "group_size")
    packing = Packing(bits, size, along_inputs=True, zero_offset=int(version == "gptq"))
    for name, stem in parts.names("[._]qweight"):
        add_grouped(parts, name, packing)
        bias = parts.stored.get(f"{stem}.bias")  # AutoGPTQ adds zeros to layers without biases
        if bias is not None and bias.size < _MAX_BIAS and not bias.read().any():
            del parts.stored[f"{stem}.bias"]


def _awq(parts: Parts) -> None:
    version = parts.settings.get("version", "gemm")
    if str(version).lower() != "gemm" or parts.settings.get("zero_point", True) is not True:
        raise ModelError(f"version is {shown(version)}, supported is gemm with zero points")
    _bits(parts.settings, "bits", (4,))
    packing = awq(_size(parts.settings, "group_size"))
    for name, _ in parts.names("[._]qweight"):
        add_grouped(parts, name, packing)


def _mxfp4(parts: Parts) -> None:
    for blocks, name in parts.names("_blocks"):
        add_mxfp4(parts, name, blocks, f"{name}_scales", transposed=True)


def _bits(settings: Mapping[str, Any], name: str, supported: range | tuple[int, ...]) -> int:
    bits = settings.get(name)
    if type(bits) is not int or bits not in supported:
        raise ModelError(f"{name} is {shown(bits)}, supported are {', '.join(map(str, supported))}")
    return bits


def _size(settings: Mapping[str, Any], name: str) -> int:
    size = settings.get(name)
    if type(size) is not int or not (size == -1 or 0 < size < 1 << 31):
        raise ModelError(f"{name} is {shown(size)}, must be a number of inputs, or -1")
    return size


# functions that decode the tensors, by ``quant_method`` of config.json
METHODS: dict[str, Callable[[Parts], None]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed_tensors,
    "gptq": _gptq,
    "awq": _awq,
    "mxfp4": _mxfp4,
}
