"""Tiny checkpoints of ``gemma4``."""

from __future__ import annotations

from typing import Any

_SLIDING, _FULL = "sliding_attention", "full_attention"
_BASE: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "vocab_size_per_layer_input": 512,
    "hidden_size_per_layer_input": 0,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "sliding_window": 16,
    "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL],
    "num_kv_shared_layers": 0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
        },
    },
}
VARIANTS = {
    "gemma4": {
        **_BASE,
        "hidden_size_per_layer_input": 32,
        "num_hidden_layers": 6,
        "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL, _SLIDING, _FULL],
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "final_logit_softcapping": 30.0,
    },
    "gemma4_moe": {
        **_BASE,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "enable_moe_block": True,
        "num_hidden_layers": 3,
        "layer_types": [_SLIDING, _FULL, _FULL],
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 96,
    },
}

LLAMA_CPP = ("gemma4", "gemma4_moe")
