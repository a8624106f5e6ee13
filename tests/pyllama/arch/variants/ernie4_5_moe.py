"""Tiny checkpoints of ``ernie4_5-moe``."""

from __future__ import annotations

from typing import Any

NAME = "ernie4_5-moe"

_BASE: dict[str, Any] = {
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "model_type": "ernie4_5_moe",
    "hidden_size": 64,
    "intermediate_size": 192,
    "moe_intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "moe_num_experts": 8,
    "moe_k": 3,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_interval": 1,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
VARIANTS = {
    "ernie4_5-moe": _BASE,
    "ernie4_5-moe_one": {**_BASE, "hidden_size": 256, "moe_k": 1},  # some of probability 1e-6
    "ernie4_5-moe_interval": {
        **_BASE,
        "num_hidden_layers": 4,
        "moe_layer_interval": 2,
        "moe_num_shared_experts": 0,
        "tie_word_embeddings": False,
    },
}

LLAMA_CPP = ("ernie4_5-moe",)
