"""Tiny checkpoints of ``gptj``."""

from __future__ import annotations

VARIANTS = {
    "gptj": {
        "architectures": ["GPTJForCausalLM"],
        "model_type": "gptj",
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "rotary_dim": 8,
        "n_positions": 256,
        "vocab_size": 512,
        "layer_norm_epsilon": 1e-5,
    }
}
