"""Tiny checkpoints of ``phi2``."""

from __future__ import annotations

VARIANTS = {
    "phi2": {
        "architectures": ["PhiForCausalLM"],
        "model_type": "phi",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
}

LLAMA_CPP = ("phi2",)

# llama.cpp writes 4 * n_embd, and the number of heads again
DIFFERENT = {"phi2": ("feed_forward_length", "attention.head_count_kv")}
