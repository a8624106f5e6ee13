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
    "mamba_biases": {  # llama.cpp's converter takes a factor of 2 only
        **{k: x for k, x in _BASE.items() if k != "intermediate_size"},
        "expand": 3,
        "conv_kernel": 3,
        "use_bias": True,
        "use_conv_bias": False,
    },
    "falcon_mamba_epsilon": {
        **_BASE,
        "architectures": ["FalconMambaForCausalLM"],
        "model_type": "falcon_mamba",
        "mixer_rms_eps": 1e-3,
    },
}

LLAMA_CPP = ("mamba", "falcon_mamba")
# transformers computes it from ``expand``
DIFFERENT = {"mamba_biases": ("ssm.inner_size",)}
