"""Tiny checkpoints of ``laguna``."""

from __future__ import annotations

from typing import Any

_SLIDING = "sliding_attention"
_BASE: dict[str, Any] = {
    "architectures": ["LagunaForCausalLM"],
    "model_type": "laguna",
    "hidden_size": 64,
    "intermediate_size": 160,
    "moe_intermediate_size": 96,
    "shared_expert_intermediate_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_attention_heads_per_layer": [4, 2, 6, 4, 4],
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "sliding_window": 16,
    "layer_types": ["full_attention", _SLIDING, _SLIDING, _SLIDING, "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "sparse"],
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_routed_scaling_factor": 2.5,
    "gating": "per-head",
    "rope_parameters": {
        "full_attention": {
            "rope_type": "yarn",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "partial_rotary_factor": 0.5,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
VARIANTS = {
    "laguna": _BASE,
    "laguna_elements": {
        **_BASE,
        "gating": "per-element",
        "num_hidden_layers": 3,
        "num_attention_heads_per_layer": [4, 2, 6],
        "layer_types": ["full_attention", _SLIDING, "full_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "num_experts": 4,
        "num_experts_per_tok": 2,
    },
}

LLAMA_CPP = ("laguna", "laguna_elements")
