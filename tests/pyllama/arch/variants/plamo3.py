"""Tiny checkpoints of ``plamo3``."""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "architectures": ["Plamo3ForCausalLM"],
    "model_type": "plamo3",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}
VARIANTS = {
    "plamo3": {
        **_BASE,
        "window_size": 16,
        "sliding_window_pattern": 4,
        "rope_local_theta": 20000.0,
    },
    "plamo3_full": {**_BASE, "num_hidden_layers": 3, "tie_word_embeddings": False},
}

LLAMA_CPP = ("plamo3", "plamo3_full")

_LAYER = "model.layers.layers.{i}"
_SHAPES = {
    "model.embed_tokens.weight": [512, 64],
    f"{_LAYER}.pre_mixer_norm.weight": [64],
    f"{_LAYER}.mixer.qkv_proj.weight": [256, 64],
    f"{_LAYER}.mixer.q_norm.weight": [32],
    f"{_LAYER}.mixer.k_norm.weight": [32],
    f"{_LAYER}.mixer.o_proj.weight": [64, 128],
    f"{_LAYER}.post_mixer_norm.weight": [64],
    f"{_LAYER}.pre_mlp_norm.weight": [64],
    f"{_LAYER}.mlp.gate_up_proj.weight": [320, 64],
    f"{_LAYER}.mlp.down_proj.weight": [64, 160],
    f"{_LAYER}.post_mlp_norm.weight": [64],
    "model.norm.weight": [64],
}
SHAPES = {
    "plamo3": _SHAPES,
    "plamo3_full": {**_SHAPES, "lm_head.weight": [512, 64]},
}
