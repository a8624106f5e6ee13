"""Tiny checkpoints of ``olmo2``."""

from __future__ import annotations

_BASE = {
    "architectures": ["Olmo2ForCausalLM"],
    "model_type": "olmo2",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
VARIANTS = {
    "olmo2": _BASE,
    "olmo3": {
        **_BASE,
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "num_hidden_layers": 4,
        "sliding_window": 16,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 32,
                "attention_factor": 1.3,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        },
    },
}

LLAMA_CPP = (
    "olmo2",
    "olmo3",
)

# which llama.cpp computes from the factor instead
DIFFERENT = {"olmo3": ("rope.scaling.yarn_attn_factor",)}
