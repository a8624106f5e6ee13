"""Tiny checkpoints of ``orion``."""

from __future__ import annotations

from . import llama, xverse

VARIANTS = {
    "orion": {
        **llama.VARIANTS["llama"],
        "architectures": ["OrionForCausalLM"],
        "model_type": "orion",
        "num_key_value_heads": 4,
        "max_sequence_length": 128,
    }
}
SHAPES = {
    "orion": {
        **xverse.SHAPES["xverse"],
        "model.layers.{i}.input_layernorm.bias": [64],
        "model.layers.{i}.post_attention_layernorm.bias": [64],
        "model.norm.bias": [64],
    }
}
LLAMA_CPP = ("orion",)
