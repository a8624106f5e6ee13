"""Tiny checkpoints of ``pangu-embedded``."""

from __future__ import annotations

from . import llama, xverse

NAME = "pangu-embedded"
VARIANTS = {
    "pangu_embedded": {
        **llama.VARIANTS["llama"],
        "architectures": ["PanguEmbeddedForCausalLM"],
        "model_type": "PanguEmbedded",
        "num_key_value_heads": 4,
        "bias": True,
        "tie_word_embeddings": False,
    }
}
SHAPES = {
    "pangu_embedded": {
        **xverse.SHAPES["xverse"],
        **{f"model.layers.{{i}}.self_attn.{part}_proj.bias": [64] for part in "qkvo"},
    }
}
LLAMA_CPP = ("pangu_embedded",)
