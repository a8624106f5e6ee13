"""Tiny checkpoints of ``command-r``."""

from __future__ import annotations

NAME = "command-r"

_BASE = {
    "architectures": ["CohereForCausalLM"],
    "model_type": "cohere",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.25,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
VARIANTS = {
    "command-r": _BASE,
    "command-r_qk_norm": {**_BASE, "use_qk_norm": True, "attention_bias": True},
}

LLAMA_CPP = ("command-r",)
