"""Tiny checkpoints of ``olmoe``."""

from __future__ import annotations

_BASE = {
    "architectures": ["OlmoeForCausalLM"],
    "model_type": "olmoe",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
VARIANTS = {
    "olmoe": _BASE,
    "olmoe_grouped": {**_BASE, "num_key_value_heads": 2, "norm_topk_prob": True},
}

LLAMA_CPP = ("olmoe",)  # it expects a head of keys for each of queries
