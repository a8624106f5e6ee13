"""Variants of Llama-Embed-Nemotron."""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "architectures": ["LlamaBidirectionalModel"],
    "model_type": "llama_bidirec",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "is_causal": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
NAME = "llama-embed"
VARIANTS = {
    "llama-embed": _BASE,
    "llama-embed_llama3": {
        **_BASE, "attention_bias": True, "head_dim": 32,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}  # fmt: skip
LLAMA_CPP = ("llama-embed",)
