"""Tiny checkpoints of ``mamba2``."""

from __future__ import annotations

VARIANTS = {
    "mamba2": {
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
    },
}

LLAMA_CPP = ("mamba2",)
