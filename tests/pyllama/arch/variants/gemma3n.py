"""Tiny checkpoints of ``gemma3n``."""

from __future__ import annotations

from typing import Any

_SLIDING, _FULL = "sliding_attention", "full_attention"
_BASE: dict[str, Any] = {
    "architectures": ["Gemma3nForCausalLM"],
    "model_type": "gemma3n_text",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "vocab_size_per_layer_input": 512,
    "hidden_size_per_layer_input": 32,
    "rms_norm_eps": 1e-6,
    "sliding_window": 16,
    "layer_types": [_SLIDING, _FULL, _SLIDING],
    "num_kv_shared_layers": 0,
    "final_logit_softcapping": 30.0,
    "activation_sparsity_pattern": [0.95, 0.95, 0.95],
    "altup_active_idx": 0,
    "altup_num_inputs": 4,
    "laurel_rank": 64,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
}
VARIANTS = {
    "gemma3n": {**_BASE, "hidden_size_per_layer_input": 256},  # what llama.cpp can run
    "gemma3n_shared": {
        **_BASE,
        "num_hidden_layers": 5,
        "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL, _SLIDING],
        "num_kv_shared_layers": 3,
        "intermediate_size": [160, 160, 96, 160, 160],
        "activation_sparsity_pattern": [0.8, 0.0, 0.0, 0.0, 0.0],
        "altup_active_idx": 1,
        "vocab_size_per_layer_input": 500,
    },
}

LLAMA_CPP = ("gemma3n",)
