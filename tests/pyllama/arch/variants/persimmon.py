"""Tiny checkpoints of ``persimmon``."""

from __future__ import annotations

VARIANTS = {
    "persimmon": {
        "architectures": ["PersimmonForCausalLM"],
        "model_type": "persimmon",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "hidden_act": "relu2",
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "rope_theta": 25000.0,
    }
}
