"""Tiny checkpoints of ``smollm3``."""

from __future__ import annotations

_BASE = {
    "architectures": ["SmolLM3ForCausalLM"],
    "model_type": "smollm3",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "pad_token_id": 0,
    "no_rope_layers": [1, 1, 1, 0],
    "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
}
VARIANTS = {
    "smollm3": _BASE,
}

LLAMA_CPP = ("smollm3",)
