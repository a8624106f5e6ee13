"""Tiny checkpoints of ``olmo``."""

from __future__ import annotations

_BASE = {
    "architectures": ["OlmoForCausalLM"],
    "model_type": "olmo",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
VARIANTS = {
    "olmo": {**_BASE, "clip_qkv": 1.0},
    "olmo_tied": {**_BASE, "tie_word_embeddings": True, "num_key_value_heads": 4},
}

LLAMA_CPP = ("olmo",)
