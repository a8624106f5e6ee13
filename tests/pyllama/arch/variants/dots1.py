"""Tiny checkpoints of ``dots1``."""

from __future__ import annotations

_BASE = {
    "architectures": ["Dots1ForCausalLM"],
    "model_type": "dots1",
    "hidden_size": 64,
    "intermediate_size": 160,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "n_shared_experts": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 1,
    "topk_group": 1,
    "scoring_func": "sigmoid",
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
}
VARIANTS = {
    "dots1": _BASE,
    "dots1_window": {**_BASE, "sliding_window": 16, "max_window_layers": 1},
}

LLAMA_CPP = ("dots1",)
