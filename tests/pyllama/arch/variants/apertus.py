"""Tiny checkpoints of ``apertus``."""

from __future__ import annotations

VARIANTS = {
    "apertus": {
        "architectures": ["ApertusForCausalLM"],
        "model_type": "apertus",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-5,
        "hidden_act": "xielu",
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    }
}

LLAMA_CPP = ("apertus",)
