"""Tiny checkpoints of ``exaone4``."""

from __future__ import annotations

_BASE = {
    "architectures": ["Exaone4ForCausalLM"],
    "model_type": "exaone4",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
    "layer_types": ["full_attention"] * 3,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}
VARIANTS = {
    "exaone4": {**_BASE, "tie_word_embeddings": True},
    "exaone4_windows": {
        **_BASE,
        "num_hidden_layers": 4,
        "sliding_window": 16,
        "sliding_window_pattern": "LLLG",
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
}

LLAMA_CPP = ("exaone4",)
