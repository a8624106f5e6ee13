"""Qwen3.5 (text): gated delta nets, attention with gates in every fourth layer, multi-section rope.

Source: Qwen Team 2026, "Qwen3.5"; llama.cpp, ``llama_model_qwen35``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph.tensors import GATED_FFN, OUTPUT
from ..hparams import Values
from ..mapping.rules import OTHER_MEDIA, Array, Config, Convert, Keys, Tensors
from . import qwen3next

HPARAMS: Values = qwen3next.MIXERS

MIXER_TENSORS = {
    **qwen3next.MIXER_TENSORS,
    "blk.{i}.ssm_beta.weight": ("recurs*n_embd", "dt_rank"),
    "blk.{i}.ssm_alpha.weight": ("recurs*n_embd", "dt_rank"),
}
TENSORS = {**MIXER_TENSORS, **GATED_FFN, **OUTPUT}

MTP = qwen3next.MTP

build_graph = qwen3next.build_graph


def with_sections(keys_of: Callable[[Config], Keys]) -> Callable[[Config], Any]:
    """The keys of a model with multi-section rope, which config.json may leave out."""

    def keys(config: Config) -> Keys:
        return {"rope.dimension_sections": [11, 11, 10, 0], **keys_of(config)}

    return keys


_ROWS = ("attn_gate", "ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt")  # of heads of values


def change(name: str, x: Array, config: Config) -> Tensors:
    """As of Qwen3-Next; of the heads of values, the first of each head of keys come first."""
    n_group, n_head = config["linear_num_key_heads"], config["linear_num_value_heads"]
    part = name.split(".")[2] if name.startswith("blk.") else ""

    def tile(x: Array) -> Array:
        heads = x.reshape(n_group, n_head // n_group, -1, *x.shape[1:])
        return heads.swapaxes(0, 1).reshape(x.shape)

    if part in _ROWS:
        x = tile(x)
    elif part in ("attn_qkv", "ssm_conv1d"):
        n = 2 * n_group * config["linear_key_head_dim"]
        x = np.concatenate([x[:n], tile(x[n:])])
    elif part == "ssm_out":
        x = tile(x.T).T
    return qwen3next.change(name, x, config)


_LINEAR = "model.layers.{i}.linear_attn"
NAMES = {
    **qwen3next.NAMES,
    f"{_LINEAR}.in_proj_qkv.weight": "blk.{i}.attn_qkv.weight",
    f"{_LINEAR}.in_proj_z.weight": "blk.{i}.attn_gate.weight",
    f"{_LINEAR}.in_proj_b.weight": "blk.{i}.ssm_beta.weight",
    f"{_LINEAR}.in_proj_a.weight": "blk.{i}.ssm_alpha.weight",
}

CONVERT = Convert(
    models=(
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "MiniCPMV4_6ForConditionalGeneration",
    ),
    tensors=NAMES,
    keys=with_sections(qwen3next.keys),
    change=change,
    defaults=qwen3next.DEFAULTS,
    other_media=(*OTHER_MEDIA, "model.merger.*"),
)
