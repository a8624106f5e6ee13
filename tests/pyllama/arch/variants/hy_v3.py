"""Tiny checkpoints of ``hy_v3``."""

from __future__ import annotations

VARIANTS = {
    "hy_v3": {
        "architectures": ["HYV3ForCausalLM"],
        "model_type": "hy_v3",
        "hidden_size": 64,
        "intermediate_size": 160,
        "moe_intermediate_size": 96,
        "num_hidden_layers": 3,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-6,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_shared_experts": 1,
        "router_scaling_factor": 2.826,
        "rope_parameters": {"rope_type": "default", "rope_theta": 11158840.0},
        "tie_word_embeddings": False,
    },
}

LLAMA_CPP = ("hy_v3",)
