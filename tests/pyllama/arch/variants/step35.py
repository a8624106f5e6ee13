"""Tiny checkpoints of ``step35``."""

from __future__ import annotations

from typing import Any

_SLIDING, _FULL = "sliding_attention", "full_attention"
_TEXT: dict[str, Any] = {
    "model_type": "step3p5",
    "hidden_size": 64,
    "intermediate_size": 160,
    "moe_intermediate_size": 96,
    "share_expert_dim": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_attention_groups": 2,
    "head_dim": 32,
    "attention_other_setting": {
        "attention_type": "sliding_attention",
        "num_attention_heads": 6,
        "num_attention_groups": 2,
        "head_dim": 32,
    },
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "sliding_window": 16,
    "layer_types": [_FULL, _SLIDING, _SLIDING, _FULL],
    "rope_theta": [5000000.0, 10000.0, 10000.0, 5000000.0],
    "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5],
    "moe_layers_enum": "2,3",
    "moe_num_experts": 4,
    "moe_top_k": 2,
    "moe_router_activation": "sigmoid",
    "moe_router_scaling_factor": 3.0,
    "norm_expert_weight": True,
    "use_moe_router_bias": True,
    "use_head_wise_attn_gate": True,
    "swiglu_limits": [None, None, 0.25, None],
    "swiglu_limits_shared": [0.25, None, None, 0.5],
}
_VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "mlp_ratio": 2.0,
    "max_position_embeddings": 4,
}
VARIANTS = {
    "step35": {
        "architectures": ["Step3p7ForConditionalGeneration"],
        "model_type": "step3p7",
        "text_config": _TEXT,
        "vision_config": _VISION,
    },
}

LLAMA_CPP = ("step35",)
