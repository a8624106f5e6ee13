"""Tiny checkpoints of ``phimoe``."""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "architectures": ["PhiMoEForCausalLM"],
    "model_type": "phimoe",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "attention_bias": True,
    "lm_head_bias": True,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "router_jitter_noise": 0.01,
    "sliding_window": 24,
    "original_max_position_embeddings": 128,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.8, 2.0, 2.5],
        "long_factor": [1.0, 1.3, 1.8, 2.5, 4.0, 6.0, 8.0, 10.0],
        "short_mscale": 1.243163121016122,
        "long_mscale": 1.243163121016122,
        "original_max_position_embeddings": 128,
    },
}
VARIANTS = {"phimoe": _BASE}

# transformers multiplies by short_mscale, llama.cpp by a factor that it computes.
DIFFERENT = {"phimoe": ("rope.scaling.attn_factor",)}
