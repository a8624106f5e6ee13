"""Tiny checkpoints of ``qwen2moe``."""

from __future__ import annotations

_BASE = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 96,
    "shared_expert_intermediate_size": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
}
VARIANTS = {
    "qwen2moe": _BASE,
    "qwen2moe_window": {
        **_BASE,
        "use_sliding_window": True,
        "sliding_window": 16,
        "max_window_layers": 2,
    },
}

LLAMA_CPP = ("qwen2moe",)
