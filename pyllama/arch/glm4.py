"""GLM-4-0414: norms before and after each part, rope on a part of each head, gate and up fused.

Source: GLM Team 2024, "ChatGLM: A Family of Large Language Models"; llama.cpp, ``llm_build_glm4``.
"""

from __future__ import annotations

from functools import partial

from ..graph.tensors import without
from ..hparams import Values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config
from . import chatglm, gemma3, qwen2

HPARAMS: Values = {}

TENSORS = {
    **chatglm.TENSORS,
    "blk.{i}.post_attention_norm.weight": ("n_embd",),
    "blk.{i}.post_ffw_norm.weight": ("n_embd",),
}

build_graph = partial(gemma3.decoder, act="silu")


def _keys(config: Config) -> Keys:
    check_config(config.get("rope_parameters") or {}, mrope_section=None)
    return base_keys(config, "silu")


CONVERT = Convert(
    models=("Glm4ForCausalLM",),
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
    keys=_keys,
)
