"""Tiny checkpoints of ``lfm2moe``."""

from __future__ import annotations

_BASE = {
    "architectures": ["Lfm2MoeForCausalLM"],
    "model_type": "lfm2_moe",
    "hidden_size": 64,
    "intermediate_size": 160,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "conv_bias": False,
    "conv_L_cache": 3,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "num_dense_layers": 1,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "use_expert_bias": True,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}
VARIANTS = {
    "lfm2moe": _BASE,
    "lfm2moe_scaled": {  # llama.cpp's converter leaves this out
        **_BASE,
        "use_expert_bias": False,
        "norm_topk_prob": False,
        "routed_scaling_factor": 2.5,
    },
}

LLAMA_CPP = ("lfm2moe",)
