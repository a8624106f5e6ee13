"""Tiny checkpoints of ``gpt-oss``."""

from __future__ import annotations

from typing import Any

NAME = "gpt-oss"

_BASE: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "attention_bias": True,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "beta_fast": 8.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 32,
    },
}
VARIANTS = {
    "gpt-oss": _BASE,  # as released
    "gpt-oss_truncate": {
        **_BASE,
        "rope_parameters": {**_BASE["rope_parameters"], "truncate": True},
    },
}

# llama.cpp rounds the ramp of YaRN to whole pairs anyhow, so with the other its tokens differ.
LLAMA_CPP = ("gpt-oss_truncate",)
