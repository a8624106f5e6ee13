"""Tiny checkpoints of ``nanbeige``: plain, and with layers that run twice."""

from __future__ import annotations

from . import llama, xverse

_BASE = {
    **llama.VARIANTS["llama"],
    "architectures": ["NanbeigeForCausalLM"],
    "model_type": "nanbeige",
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
VARIANTS = {
    "nanbeige": {**_BASE, "num_loops": 2},
    "nanbeige_skip_norm": {**_BASE, "num_loops": 2, "skip_loop_final_norm": True},
}
SHAPES = dict.fromkeys(VARIANTS, xverse.SHAPES["xverse"])
LLAMA_CPP = ("nanbeige", "nanbeige_skip_norm")
