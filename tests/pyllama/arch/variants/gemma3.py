"""Tiny checkpoints of ``gemma3``."""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "sliding_window": 16,
    "query_pre_attn_scalar": 32,
}
VARIANTS = {
    "gemma3": {**_BASE, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0},
    "gemma3_capped": {
        **_BASE,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 20,
        "final_logit_softcapping": 3.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        },
    },
    "gemma3_vision": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_hidden_layers": 7,
            "head_dim": 32,
            "vocab_size": 512,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 16,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 8,
        },
        "mm_tokens_per_image": 1,
    },
}

LLAMA_CPP = ("gemma3",)
