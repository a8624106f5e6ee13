"""Tiny checkpoints of ``starcoder2``."""

from __future__ import annotations

_BASE = {
    "architectures": ["Starcoder2ForCausalLM"],
    "model_type": "starcoder2",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "norm_epsilon": 1e-5,
    "sliding_window": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
}
VARIANTS = {
    "starcoder2": _BASE,
    "starcoder2_window": {**_BASE, "sliding_window": 16},
    "starcoder2_no_biases": {**_BASE, "use_bias": False, "tie_word_embeddings": False},
}

LLAMA_CPP = ("starcoder2",)
