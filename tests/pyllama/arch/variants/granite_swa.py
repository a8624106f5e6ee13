"""Tiny checkpoints of ``granite_swa``."""

from __future__ import annotations

from typing import Any

_SLIDING, _FULL = "sliding_attention", "full_attention"
_BASE: dict[str, Any] = {
    "architectures": ["GraniteSWAForCausalLM"],
    "model_type": "granite_swa",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0883883,
    "logits_scaling": 8.0,
    "sliding_window": 16,
    "layer_types": [_FULL, _SLIDING, _SLIDING, _FULL],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
}
VARIANTS = {
    "granite_swa": {
        **_BASE,
        "layer_rope_theta": [0, 10000.0, 10000.0, 0],
        "no_rope_layers": [0, 1, 1, 0],  # for llama.cpp's converter
    },
    "granite_swa_experts": {
        **_BASE,
        "architectures": ["GraniteMoeSWAForCausalLM"],
        "model_type": "granitemoe_swa",
        "intermediate_size": 96,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "shared_intermediate_size": 64,
        "tie_word_embeddings": False,
    },
}

LLAMA_CPP = ("granite_swa", "granite_swa_experts")
