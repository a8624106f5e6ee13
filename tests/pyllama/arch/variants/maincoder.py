"""Tiny checkpoints of ``maincoder``."""

from __future__ import annotations

from . import llama

VARIANTS = {
    "maincoder": {
        **llama.VARIANTS["llama"],
        "architectures": ["MaincoderForCausalLM"],
        "model_type": "maincoder",
        "head_dim": 32,
    }
}
SHAPES = {
    "maincoder": {
        "model.embed_tokens.weight": [512, 64],
        "model.layers.{i}.input_layernorm.weight": [64],
        "model.layers.{i}.self_attn.q_proj.weight": [128, 64],
        "model.layers.{i}.self_attn.q_norm.weight": [32],
        "model.layers.{i}.self_attn.k_proj.weight": [64, 64],
        "model.layers.{i}.self_attn.k_norm.weight": [32],
        "model.layers.{i}.self_attn.v_proj.weight": [64, 64],
        "model.layers.{i}.self_attn.o_proj.weight": [64, 128],
        "model.layers.{i}.post_attention_layernorm.weight": [64],
        "model.layers.{i}.mlp.gate_proj.weight": [160, 64],
        "model.layers.{i}.mlp.up_proj.weight": [160, 64],
        "model.layers.{i}.mlp.down_proj.weight": [64, 160],
        "model.norm.weight": [64],
        "lm_head.weight": [512, 64],
    }
}
LLAMA_CPP = ("maincoder",)
