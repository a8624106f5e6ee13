"""Tiny checkpoints of ``hunyuan-moe``."""

from __future__ import annotations

NAME = "hunyuan-moe"

VARIANTS = {
    "hunyuan-moe": {
        "architectures": ["HunYuanMoEV1ForCausalLM"],
        "model_type": "hunyuan_v1_moe",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-5,
        "num_experts": 8,
        "moe_topk": [3, 3, 3],
        "moe_intermediate_size": [96, 96, 96],
        "num_shared_expert": [1, 1, 1],
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
}

LLAMA_CPP = ("hunyuan-moe",)
