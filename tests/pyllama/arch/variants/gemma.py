"""Tiny checkpoints of ``gemma``."""

from __future__ import annotations

_BASE = {
    "architectures": ["GemmaForCausalLM"],
    "model_type": "gemma",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "head_dim": 32,
    "hidden_act": "gelu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
VARIANTS = {
    "gemma": {**_BASE, "num_key_value_heads": 1},
    "gemma_untied": {**_BASE, "tie_word_embeddings": False},
}

LLAMA_CPP = ("gemma",)

DIFFERENT = {"gemma_untied": ("output.weight",)}  # llama.cpp leaves it out
