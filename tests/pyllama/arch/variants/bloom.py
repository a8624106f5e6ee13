"""Tiny checkpoints of ``bloom``."""

from __future__ import annotations

VARIANTS = {
    "bloom": {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "hidden_size": 64,
        "n_layer": 3,
        "n_head": 4,
        "vocab_size": 512,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
}
VARIANTS["bloom_6_heads"] = VARIANTS["bloom"] | {
    "hidden_size": 96,
    "n_head": 6,
}  # no power of two: slopes

LLAMA_CPP = (
    "bloom",
    "bloom_6_heads",
)

# llama.cpp writes the width for the context length, and the number of heads again
DIFFERENT = dict.fromkeys(VARIANTS, ("context_length", "attention.head_count_kv"))
