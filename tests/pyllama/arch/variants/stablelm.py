"""Tiny checkpoints of ``stablelm``."""

from __future__ import annotations

_BASE = {
    "architectures": ["StableLmForCausalLM"],
    "model_type": "stablelm",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "layer_norm_eps": 1e-5,
    "use_parallel_residual": False,
    "use_qkv_bias": False,
    "qk_layernorm": False,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
}
VARIANTS = {
    "stablelm": {**_BASE, "use_qkv_bias": True, "num_key_value_heads": 4},
    "stablelm_parallel": {**_BASE, "use_parallel_residual": True, "qk_layernorm": True},
}

LLAMA_CPP = (
    "stablelm",
    "stablelm_parallel",
)
