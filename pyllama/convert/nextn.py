"""Layers of multi-token prediction in checkpoints: under llama.cpp's names, after the decoder's.

    n_layer = keys["block_count"]
    checkpoint, n = nextn_layers(checkpoint, config, arch, n_layer)  # model.layers.{n_layer}...
    keys |= nextn_keys(keys, n, config, arch)

Checkpoints have them as further layers (DeepSeek, GLM) or under ``mtp.`` (Qwen, MiMo).
Source: llama.cpp, ``_QwenMtpMixin`` and ``Glm4MoeModel`` of its converter.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arch import Arch, mtp_of
from ..hparams import layer_keys
from ..mapping.rules import Config, Nextn
from .files.decoded import CheckpointTensor

log = logging.getLogger(__name__)
_ANY_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,4})\.")  # in the name of a checkpoint's tensor
_MTP = re.compile(r"(?:model\.)?mtp\.(?:layers\.(\d{1,4})\.)?(.+)")
_EMBEDDING = "model.mtp.embed_tokens.weight"  # of dots3-note, whose config.json does not say
_OF_FIRST = {  # Qwen's names of tensors that are not in a numbered layer
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
    checkpoint: Mapping[str, CheckpointTensor], config: Config, arch: Arch, n_layer: int,
    *, wanted: bool = True,
) -> tuple[dict[str, CheckpointTensor], int]:  # fmt: skip
    """The tensors with layers of multi-token prediction after the decoder's, and their number.

    These layers are left out if the architecture cannot load them.

    Args:
        n_layer: number of the decoder's layers.
        wanted: False leaves them out of any architecture.
    """
    settings = mtp_of(arch)
    decoder: dict[str, CheckpointTensor] = {}
    more: dict[str, CheckpointTensor] = {}
    has_more = config.get("num_nextn_predict_layers") or _EMBEDDING in checkpoint
    for name, tensor in checkpoint.items():
        mtp, layer = _MTP.fullmatch(name), _ANY_LAYER.search(name)
        if mtp:
            more[_layer_name(mtp[1], mtp[2], n_layer, settings)] = tensor
        elif layer and int(layer[1]) >= n_layer and has_more:
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
    """The name of a tensor of multi-token prediction, in a layer after the decoder's.

    Args:
        layer: its number among such layers of the checkpoint; None: the name has none.
        end: the name after the layer's number.
    """
    settings = settings or Nextn()
    names = _OF_FIRST if layer is None else settings.names
    at, part = divmod(int(layer or 0), settings.n_parts)
    for theirs, ours in names.items():
        for prefix in ("", f"{part}."):
            if f"{prefix}{end}".startswith(theirs):
                end = ours + end.removeprefix(theirs.removeprefix(prefix))
                return f"model.layers.{n_layer + at}.{end}"
    return f"model.layers.{n_layer + at}.{end}"


def nextn_keys(keys: Mapping[str, Any], n: int, config: Config, arch: Arch) -> dict[str, Any]:
    """The keys that change with ``n`` layers of multi-token prediction: counts, values by layer."""
    settings = mtp_of(arch)
    if not n or settings is None:
        return {}
    found: dict[str, Any] = {"block_count": keys["block_count"] + n, "nextn_predict_layers": n}
    own = [settings.layer(config, i) for i in range(n)]
    for key in layer_keys(arch.HPARAMS):
        value = keys.get(key)
        if isinstance(value, list | np.ndarray) and len(value) == keys["block_count"]:
            more = [of_layer.get(key, value[-1]) for of_layer in own]
            if isinstance(value, list):
                found[key] = [*value, *more]
            else:
                found[key] = np.concatenate([value, np.array(more, value.dtype)])
    return found
