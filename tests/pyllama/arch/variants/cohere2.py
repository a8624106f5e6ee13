"""Tiny checkpoints of ``cohere2``."""

from __future__ import annotations

_BASE = {
    "architectures": ["Cohere2ForCausalLM"],
    "model_type": "cohere2",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.25,
    "sliding_window": 16,
    "rotary_pct": 1.0,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
VARIANTS = {
    "cohere2": _BASE,
    "cohere2_untied": {**_BASE, "tie_word_embeddings": False},
}

LLAMA_CPP = ("cohere2",)
