"""Tiny checkpoints of ``seed_oss``."""

from __future__ import annotations

_BASE = {
    "architectures": ["SeedOssForCausalLM"],
    "model_type": "seed_oss",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "attention_bias": True,
    "attention_out_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
VARIANTS = {
    "seed_oss": _BASE,
    "seed_oss_biases": {
        **_BASE,
        "attention_out_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
}

LLAMA_CPP = ("seed_oss",)
