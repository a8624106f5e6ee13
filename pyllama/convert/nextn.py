"""Layers of multi-token prediction in checkpoints: under llama.cpp's names, after the decoder's.

    checkpoint, n = nextn_layers(checkpoint, config, arch)  # model.layers.{n_layer}.eh_proj, ...
    keys |= nextn_keys(keys, n, mtp_of(arch))

Checkpoints have them as further layers (DeepSeek, GLM) or under ``mtp.`` (Qwen, MiMo).
Source: llama.cpp, ``_QwenMtpMixin`` and ``Glm4MoeModel`` of its converter.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from ..arch import Arch, mtp_of
from ..mapping.rules import Config, Nextn
from .files.decoded import CheckpointTensor

log = logging.getLogger(__name__)
_ANY_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,4})\.")  # in the name of a checkpoint's tensor
_MTP = re.compile(r"(?:model\.)?mtp\.(?:layers\.(\d{1,4})\.)?(.+)")
_OF_FIRST = {  # Qwen's names of what is there once
    "fc.": "eh_proj.",
    "pre_fc_norm_embedding.": "enorm.",
    "pre_fc_norm_hidden.": "hnorm.",
    "norm.": "shared_head.norm.",
}
_OF_LAYER = ("eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head.norm", "shared_head.head")
NEXTN_NAMES: Mapping[str, str] = {
    "model.layers.{i}.final_layernorm.weight": "blk.{i}.layer_output_norm.weight",
    **{
        f"model.layers.{{i}}.{part}.weight": f"blk.{{i}}.nextn.{part.replace('.', '_')}.weight"
        for part in _OF_LAYER
    },
}


def nextn_layers(
    checkpoint: Mapping[str, CheckpointTensor], config: Config, arch: Arch, *, wanted: bool = True
) -> tuple[dict[str, CheckpointTensor], int]:
    """The tensors with those of multi-token prediction as further layers, and their number.

    Of architectures whose layers cannot be loaded, they are left out.

    Args:
        wanted: False leaves them out in any case.
    """
    n_layer, settings = config.get("num_hidden_layers"), mtp_of(arch)
    if not isinstance(n_layer, int):
        return dict(checkpoint), 0
    decoder: dict[str, CheckpointTensor] = {}
    more: dict[str, CheckpointTensor] = {}
    for name, tensor in checkpoint.items():
        mtp, layer = _MTP.fullmatch(name), _ANY_LAYER.search(name)
        if mtp:
            more[_layer_name(mtp[1], mtp[2], n_layer, settings)] = tensor
        elif layer and int(layer[1]) >= n_layer and config.get("num_nextn_predict_layers"):
            at = str(int(layer[1]) - n_layer)
            more[_layer_name(at, name[layer.end() :], n_layer, settings)] = tensor
        else:
            decoder[name] = tensor
    layers = {int(match[1]) - n_layer for name in more if (match := _ANY_LAYER.search(name))}
    if settings is None and more:
        log.warning(
            "%d tensors of multi-token prediction are skipped, such as %s", len(more), min(more)
        )
    if settings is None or not wanted:
        return decoder, 0
    return {**decoder, **more}, len(layers)


def _layer_name(layer: str | None, end: str, n_layer: int, settings: Nextn | None) -> str:
    """The name in a further layer of a tensor of one; without a number under ``mtp.``."""
    names = _OF_FIRST if layer is None else ({} if settings is None else settings.names)
    for theirs, ours in names.items():
        if end.startswith(theirs):
            end = ours + end.removeprefix(theirs)
            break
    return f"model.layers.{n_layer + int(layer or 0)}.{end}"


def nextn_keys(keys: Mapping[str, Any], n: int, settings: Nextn | None) -> dict[str, Any]:
    """The keys that differ in a model with ``n`` such layers."""
    if not n or settings is None:
        return {}
    found: dict[str, Any] = {
        "block_count": keys["block_count"] + n,
        "nextn_predict_layers": n,
    }
    for key, value in keys.items():
        if isinstance(value, list) and len(value) == keys["block_count"]:
            found[key] = [*value, *[settings.layer.get(key, value[-1])] * n]
    return found
