"""Tiny checkpoints of ``qwen3``."""

from __future__ import annotations

from . import qwen2

_BASE = {
    **qwen2.VARIANTS["qwen2"],
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 32,
}
VARIANTS = {
    "qwen3": _BASE,
    "qwen3_biases": {**_BASE, "attention_bias": True, "tie_word_embeddings": True},
}

LLAMA_CPP = ("qwen3",)
