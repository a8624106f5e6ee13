"""Tiny checkpoints of ``mamba``."""

from __future__ import annotations

_BASE = {
    "architectures": ["MambaForCausalLM"],
    "model_type": "mamba",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "state_size": 16,
    "conv_kernel": 4,
    "expand": 2,
    "time_step_rank": 4,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}
VARIANTS = {
    "mamba": _BASE,
    "falcon_mamba": {
        **_BASE,
        "architectures": ["FalconMambaForCausalLM"],
        "model_type": "falcon_mamba",
        "tie_word_embeddings": True,
    },
}

LLAMA_CPP = ("mamba", "falcon_mamba")
