"""Tiny checkpoints of ``glm4``."""

from __future__ import annotations

_BASE = {
    "architectures": ["Glm4ForCausalLM"],
    "model_type": "glm4",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "head_dim": 32,
    "rms_norm_eps": 1.5625e-07,
    "attention_bias": True,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
}
VARIANTS = {
    "glm4": _BASE,
    "glm4_relu2": {**_BASE, "hidden_act": "relu2"},
    "glm4_no_biases": {**_BASE, "attention_bias": False, "head_dim": 16},
}

LLAMA_CPP = ("glm4",)
