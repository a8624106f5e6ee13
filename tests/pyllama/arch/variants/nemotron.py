"""Tiny checkpoints of ``nemotron``."""

from __future__ import annotations

_BASE = {
    "architectures": ["NemotronForCausalLM"],
    "model_type": "nemotron",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "hidden_act": "relu2",
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
}
VARIANTS = {
    "nemotron": _BASE,
}

LLAMA_CPP = ("nemotron",)

# of RMS norms, which Nemotron does not have
DIFFERENT = {"nemotron": ("attention.layer_norm_rms_epsilon",)}
