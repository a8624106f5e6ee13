"""Tiny checkpoints of ``exaone``."""

from __future__ import annotations

VARIANTS = {
    "exaone": {
        "architectures": ["ExaoneForCausalLM"],
        "model_type": "exaone",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "activation_function": "silu",
        "layer_norm_epsilon": 1e-5,
        "rope_theta": 1000000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "tie_word_embeddings": False,
    }
}
LLAMA_CPP = ("exaone",)
