"""Tiny checkpoints of ``gpt2``."""

from __future__ import annotations

VARIANTS = {
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 256,
        "vocab_size": 512,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
}
VARIANTS["gpt2_unscaled"] = VARIANTS["gpt2"] | {
    "scale_attn_weights": False,
    "activation_function": "relu",
    "n_inner": 160,
    "tie_word_embeddings": False,
}

LLAMA_CPP = ("gpt2",)
