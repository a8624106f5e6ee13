"""Tiny checkpoints of ``hunyuan-dense``."""

from __future__ import annotations

NAME = "hunyuan-dense"

_BASE = {
    "architectures": ["HunYuanDenseV1ForCausalLM"],
    "model_type": "hunyuan_v1_dense",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
VARIANTS = {
    "hunyuan-dense": _BASE,
    "hunyuan-dense_alpha": {
        **_BASE,
        "max_position_embeddings": 32768,
        "rope_parameters": {
            "rope_type": "dynamic",
            "rope_theta": 10000.0,
            "alpha": 1000.0,
            "factor": 1.0,
        },
    },
}

LLAMA_CPP = ("hunyuan-dense_alpha",)
