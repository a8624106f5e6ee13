"""Tiny checkpoints of ``ernie4_5``."""

from __future__ import annotations

_BASE = {
    "architectures": ["Ernie4_5ForCausalLM"],
    "model_type": "ernie4_5",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "use_bias": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
}
VARIANTS = {
    "ernie4_5": _BASE,
}

LLAMA_CPP = ("ernie4_5",)
