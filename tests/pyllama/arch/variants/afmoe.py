"""Tiny checkpoints of ``afmoe``."""

from __future__ import annotations

VARIANTS = {
    "afmoe": {
        "architectures": ["AfmoeForCausalLM"],
        "model_type": "afmoe",
        "hidden_size": 64,
        "intermediate_size": 160,
        "moe_intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_dense_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-5,
        "sliding_window": 16,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_shared_experts": 1,
        "route_norm": True,
        "route_scale": 2.826,
        "mup_enabled": True,
        "score_func": "sigmoid",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}

LLAMA_CPP = ("afmoe",)
