"""Tiny checkpoints of ``minimax-m2``."""

from __future__ import annotations

NAME = "minimax-m2"

_BASE = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rotary_dim": 16,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "scoring_func": "sigmoid",
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "rope_theta": 10000.0,
}
VARIANTS = {
    "minimax-m2": _BASE,
    "minimax-m2_fraction": {
        **_BASE,
        "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.75},
    },
}

LLAMA_CPP = ("minimax-m2",)

# llama.cpp always takes rotary_dim
DIFFERENT = {"minimax-m2_fraction": ("rope.dimension_count",)}
