"""GLM-4-0414: norms before and after each part, rope on a part of each head, gate and up fused.

Also the text models of GLM-4.1V and GLM-OCR: with multi-section rope, files have the rotated
columns in halves, as llama.cpp has them, instead of in pairs.
Source: GLM Team 2024, "ChatGLM: A Family of Large Language Models"; llama.cpp, ``llm_build_glm4``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..graph.tensors import without
from ..hparams import Key, Values
from ..mapping.rope import rope_keys
from ..mapping.rules import (
    Array,
    Config,
    Convert,
    Tensors,
    base_keys,
    head_columns,
    rope_halves,
    rotated_fraction,
)
from . import chatglm, gemma3, qwen2

HPARAMS: Values = {
    "rope_sections": Key("rope.dimension_sections", type=list),
    "rope_neox": lambda got: any(got["rope_sections"]),
}

TENSORS = {
    **chatglm.TENSORS,
    "blk.{i}.post_attention_norm.weight": ("n_embd",),
    "blk.{i}.post_ffw_norm.weight": ("n_embd",),
}

build_graph = partial(gemma3.decoder, act="silu")


def _change(name: str, x: Array, config: Config) -> Tensors:
    part = name.split(".")[-2]
    if part not in ("attn_q", "attn_k") or "rope.dimension_sections" not in rope_keys(config):
        return {name: x}
    heads = x.reshape(-1, head_columns(config), *x.shape[1:])  # [n_head, head_dim, ...]
    n = int(heads.shape[1] * (rotated_fraction(config) or 1))
    rotated = heads[:, :n].reshape(-1, *x.shape[1:])
    halves = rope_halves(rotated, len(heads)).reshape(heads[:, :n].shape)
    return {name: np.concatenate([halves, heads[:, n:]], 1).reshape(x.shape)}


CONVERT = Convert(
    models=("Glm4ForCausalLM", "Glm4vForConditionalGeneration", "GlmOcrForConditionalGeneration"),
    tensors={
        **without(qwen2.CONVERT.tensors, ".mlp."),
        "model.layers.{i}.post_self_attn_layernorm.weight": "blk.{i}.post_attention_norm.weight",
        "model.layers.{i}.mlp.gate_up_proj.weight": "blk.{i}.ffn_up.weight",
        "model.layers.{i}.mlp.down_proj.weight": "blk.{i}.ffn_down.weight",
        "model.layers.{i}.post_mlp_layernorm.weight": "blk.{i}.post_ffw_norm.weight",
    },
    defaults={
        "head_dim": 128,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1.5625e-7,
        "rope_theta": 10000.0,
    },
    of_class={
        "Glm4vForConditionalGeneration": {"head_dim": None, "rms_norm_eps": 1e-5},
        "GlmOcrForConditionalGeneration": {"partial_rotary_factor": 1.0, "rms_norm_eps": 1e-5},
    },
    keys=lambda config: base_keys(config, "silu"),
    change=_change,
)
