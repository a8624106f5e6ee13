"""Tiny checkpoints of ``minicpm``."""

from __future__ import annotations

from . import llama, xverse

VARIANTS = {
    "minicpm": {
        **llama.VARIANTS["llama"],
        "architectures": ["MiniCPMForCausalLM"],
        "model_type": "minicpm",
        "num_key_value_heads": 4,
        "scale_emb": 3,
        "scale_depth": 1.2,
        "dim_model_base": 40,
        "tie_word_embeddings": False,
    }
}
SHAPES = {"minicpm": xverse.SHAPES["xverse"]}
LLAMA_CPP = ("minicpm",)
