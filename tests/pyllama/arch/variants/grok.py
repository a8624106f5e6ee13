"""Tiny checkpoints of ``grok``."""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "model_type": "grok",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "attn_output_multiplier": 0.15,
    "attn_logit_softcapping": 4.0,
    "embedding_multiplier_scale": 3.0,
    "output_multiplier_scale": 0.5,
}
VARIANTS = {
    "grok": {
        **_BASE,
        "architectures": ["Grok1ForCausalLM"],
        "moe_intermediate_size": 96,
        "final_logit_softcapping": 20.0,
        "rope_theta": 10000.0,
        "rope_type": "original",
        "scaling_factor": 16.0,
        "original_max_position_embeddings": 32,
        "extrapolation_factor": 1.0,
        "attn_factor": 1.0,
        "beta_fast": 8,
        "beta_slow": 1,
    },
    "grok_1": {**_BASE, "architectures": ["GrokForCausalLM"]},
}
SHAPES = {
    "grok": {
        "model.embed_tokens.weight": [512, 64],
        "model.layers.{i}.pre_attn_norm.weight": [64],
        "model.layers.{i}.self_attn.q_proj.weight": [64, 64],
        "model.layers.{i}.self_attn.k_proj.weight": [32, 64],
        "model.layers.{i}.self_attn.v_proj.weight": [32, 64],
        "model.layers.{i}.self_attn.o_proj.weight": [64, 64],
        "model.layers.{i}.post_attn_norm.weight": [64],
        "model.layers.{i}.pre_moe_norm.weight": [64],
        "model.layers.{i}.mlp.gate_proj.weight": [160, 64],
        "model.layers.{i}.mlp.up_proj.weight": [160, 64],
        "model.layers.{i}.mlp.down_proj.weight": [64, 160],
        "model.layers.{i}.block_sparse_moe.gate.weight": [8, 64],
        "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight": [96, 64],
        "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight": [64, 96],
        "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight": [96, 64],
        "model.layers.{i}.post_moe_norm.weight": [64],
        "model.norm.weight": [64],
        "lm_head.weight": [512, 64],
    },
    "grok_1": {
        "transformer.in_out_embed.weight": [512, 64],
        "transformer.decoder_layer.{i}.rms_norm.weight": [64],
        "transformer.decoder_layer.{i}.multi_head_attention.query.weight": [64, 64],
        "transformer.decoder_layer.{i}.multi_head_attention.key.weight": [32, 64],
        "transformer.decoder_layer.{i}.multi_head_attention.value.weight": [32, 64],
        "transformer.decoder_layer.{i}.multi_head_attention.linear.weight": [64, 64],
        "transformer.decoder_layer.{i}.rms_norm_1.weight": [64],
        "transformer.decoder_layer.{i}.rms_norm_2.weight": [64],
        "transformer.decoder_layer.{i}.router.weight": [8, 64],
        "transformer.decoder_layer.{i}.moe.{e}.linear.weight": [160, 64],
        "transformer.decoder_layer.{i}.moe.{e}.linear_1.weight": [64, 160],
        "transformer.decoder_layer.{i}.moe.{e}.linear_v.weight": [160, 64],
        "transformer.decoder_layer.{i}.rms_norm_3.weight": [64],
        "transformer.rms_norm.weight": [64],
    },
}

LLAMA_CPP = ("grok", "grok_1")
