"""Tiny checkpoints of ``jamba``."""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "architectures": ["JambaForCausalLM"],
    "model_type": "jamba",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "expert_layer_period": 3,
    "expert_layer_offset": 0,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": 8,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "tie_word_embeddings": False,
}
VARIANTS = {
    "jamba": _BASE,
    "jamba_dense": {
        **_BASE,
        "num_hidden_layers": 4,
        "num_experts": 1,
        "num_experts_per_tok": 1,
        "mamba_dt_rank": 4,
        "tie_word_embeddings": True,
    },
    "jamba_biases": {  # llama.cpp's converter does not take them
        **_BASE,
        "mamba_proj_bias": True,
        "mamba_conv_bias": False,
        "mamba_expand": 3,
    },
}

LLAMA_CPP = ("jamba", "jamba_dense")
