"""Tiny checkpoints of ``xverse``."""

from __future__ import annotations

from . import llama

VARIANTS = {
    "xverse": {
        **llama.VARIANTS["llama"],
        "architectures": ["XverseForCausalLM"],
        "model_type": "xverse",
        "num_key_value_heads": 4,
    }
}
SHAPES = {
    "xverse": {
        **llama.ATTENTION,
        "model.layers.{i}.self_attn.k_proj.weight": [64, 64],
        "model.layers.{i}.self_attn.v_proj.weight": [64, 64],
        "model.layers.{i}.mlp.gate_proj.weight": [160, 64],
        "model.layers.{i}.mlp.up_proj.weight": [160, 64],
        "model.layers.{i}.mlp.down_proj.weight": [64, 160],
    }
}
LLAMA_CPP = ("xverse",)
