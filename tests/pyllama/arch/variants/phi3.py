"""Tiny checkpoints of ``phi3``."""

from __future__ import annotations

_BASE = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "original_max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
    },
}
VARIANTS = {
    "phi3": {**_BASE, "num_key_value_heads": 4, "sliding_window": 16},
    "phi3_longrope": {
        **_BASE,
        "original_max_position_embeddings": 16,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0,
            "short_factor": [1, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35],
            "long_factor": [1, 2.5, 4, 5.5, 7, 8.5, 10, 11.5],
            "original_max_position_embeddings": 16,
        },
    },
    "phi4": {
        **_BASE,
        "original_max_position_embeddings": 16,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "short_factor": [1, 1, 1, 1, 1, 1],
            "long_factor": [1, 2.5, 4, 5.5, 7, 8.5],
            "original_max_position_embeddings": 16,
        },
    },
}

# llama.cpp wants special tokens of Phi-3's vocabulary in a model that is called phi3
LLAMA_CPP = ("phi4",)
