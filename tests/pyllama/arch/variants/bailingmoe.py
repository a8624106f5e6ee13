"""Tiny checkpoints of ``bailingmoe``."""

from __future__ import annotations

VARIANTS = {
    "bailingmoe": {
        "architectures": ["BailingMoeForCausalLM"],
        "model_type": "bailing_moe",
        "hidden_size": 64,
        "intermediate_size": 160,
        "moe_intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-6,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_shared_experts": 2,
        "first_k_dense_replace": 0,
        "norm_topk_prob": True,
        "norm_head": False,
        "hidden_act": "silu",
        "rope_theta": 600000.0,
        "rope_scaling": None,
        "use_bias": False,
        "use_qkv_bias": False,
    }
}
SHAPES = {
    "bailingmoe": {
        "model.word_embeddings.weight": [512, 64],
        "model.layers.{i}.input_layernorm.weight": [64],
        "model.layers.{i}.attention.query_key_value.weight": [256, 64],
        "model.layers.{i}.attention.dense.weight": [64, 128],
        "model.layers.{i}.post_attention_layernorm.weight": [64],
        "model.layers.{i}.mlp.gate.weight": [8, 64],
        "model.layers.{i}.mlp.experts.{e}.gate_proj.weight": [48, 64],
        "model.layers.{i}.mlp.experts.{e}.up_proj.weight": [48, 64],
        "model.layers.{i}.mlp.experts.{e}.down_proj.weight": [64, 48],
        "model.layers.{i}.mlp.shared_experts.gate_proj.weight": [96, 64],
        "model.layers.{i}.mlp.shared_experts.up_proj.weight": [96, 64],
        "model.layers.{i}.mlp.shared_experts.down_proj.weight": [64, 96],
        "model.norm.weight": [64],
        "lm_head.weight": [512, 64],
    }
}

LLAMA_CPP = ("bailingmoe",)
