"""Tiny checkpoints of ``granite``."""

from __future__ import annotations

_BASE = {
    "architectures": ["GraniteForCausalLM"],
    "model_type": "granite",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0883883,
    "logits_scaling": 8.0,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
VARIANTS = {
    "granite": _BASE,
    "granite_biases": {
        **_BASE,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
        "embedding_multiplier": 1.0,
    },
}

LLAMA_CPP = ("granite",)
