"""Tiny checkpoints of ``mamba2``."""

from __future__ import annotations

_BASE = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 32,
    "n_groups": 1,
    "conv_kernel": 4,
    "expand": 2,
    "chunk_size": 16,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}
VARIANTS = {
    "mamba2": _BASE,
    "mamba2_limits": {
        **_BASE,
        "n_groups": 2,
        "time_step_limit": [0.04, 0.1],  # llama.cpp computes without them
        "use_bias": True,
        "use_conv_bias": False,
    },
}

LLAMA_CPP = ("mamba2",)
