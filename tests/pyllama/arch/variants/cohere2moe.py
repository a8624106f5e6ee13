"""Tiny checkpoints of ``cohere2moe``."""

from __future__ import annotations

from typing import Any

_SLIDING = "sliding_attention"
_BASE: dict[str, Any] = {
    "architectures": ["Cohere2MoeForCausalLM"],
    "model_type": "cohere2_moe",
    "hidden_size": 64,
    "intermediate_size": 96,
    "prefix_dense_intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.25,
    "sliding_window": 16,
    "layer_types": ["full_attention", _SLIDING, "full_attention", _SLIDING],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_shared_experts": 0,
    "expert_selection_fn": "softmax",
    "norm_topk_prob": True,
    "rope_theta": 50000.0,
    "tie_word_embeddings": True,
}
VARIANTS = {
    "cohere2moe": _BASE,
    "cohere2moe_shared": {
        **_BASE,
        "rms_norm_eps": 1e-6,
        "num_shared_experts": 2,
        "expert_selection_fn": "sigmoid",
        "mlp_layer_types": ["sparse"] * 4,
    },
}

LLAMA_CPP = ("cohere2moe", "cohere2moe_shared")
