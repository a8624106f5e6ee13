"""Tiny checkpoints of ``qwen2``."""

from __future__ import annotations

_BASE = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
}
VARIANTS = {
    "qwen2": {**_BASE, "tie_word_embeddings": False},
    "qwen2_tied": {**_BASE, "tie_word_embeddings": True},
    "qwen2_window": {
        **_BASE,
        "use_sliding_window": True,
        "sliding_window": 16,
        "max_window_layers": 1,
    },
}

LLAMA_CPP = (
    "qwen2",
    "qwen2_tied",
)
