"""Tiny checkpoints of ``talkie``."""

from __future__ import annotations

VARIANTS = {
    "talkie": {
        "architectures": ["TalkieForCausalLM"],
        "model_type": "talkie",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rope_theta": 1000000.0,
    },
}

LLAMA_CPP = ("talkie",)

_LAYER = "model.blocks.{i}"
SHAPES = {
    "talkie": {
        "model.embed.weight": [512, 64],
        f"{_LAYER}.attn.attn_query.weight": [64, 64],
        f"{_LAYER}.attn.attn_key.weight": [64, 64],
        f"{_LAYER}.attn.attn_value.weight": [64, 64],
        f"{_LAYER}.attn.attn_resid.weight": [64, 64],
        f"{_LAYER}.attn.head_gain.head_g": [4],
        f"{_LAYER}.attn_gain.a_g": [1],
        f"{_LAYER}.mlp.mlp_gate.weight": [160, 64],
        f"{_LAYER}.mlp.mlp_linear.weight": [160, 64],
        f"{_LAYER}.mlp.mlp_resid.weight": [64, 160],
        f"{_LAYER}.mlp_gain.a_g": [1],
        f"{_LAYER}.embed_skip.a_g": [1],
        "lm_head": [512, 64],
        "lm_head_gain.w_g": [1],
    },
}
