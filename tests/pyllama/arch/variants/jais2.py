"""Tiny checkpoints of ``jais2``."""

from __future__ import annotations

VARIANTS = {
    "jais2": {
        "architectures": ["Jais2ForCausalLM"],
        "model_type": "jais2",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "hidden_act": "relu2",
        "layer_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    }
}
LLAMA_CPP = ("jais2",)
