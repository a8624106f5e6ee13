"""Tiny checkpoints of ``exaone-moe``."""

from __future__ import annotations

NAME = "exaone-moe"
_SLIDING = "sliding_attention"
VARIANTS = {
    "exaone-moe": {
        "architectures": ["ExaoneMoeForCausalLM"],
        "model_type": "exaone_moe",
        "hidden_size": 64,
        "intermediate_size": 160,
        "moe_intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-5,
        "sliding_window": 16,
        "layer_types": [_SLIDING, _SLIDING, "full_attention", _SLIDING],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "first_k_dense_replace": 1,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_shared_experts": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "sigmoid",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
}

LLAMA_CPP = ("exaone-moe",)
