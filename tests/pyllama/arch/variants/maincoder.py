"""Tiny checkpoints of ``maincoder``."""

from __future__ import annotations

from . import llama, xverse

VARIANTS = {
    "maincoder": {
        **llama.VARIANTS["llama"],
        "architectures": ["MaincoderForCausalLM"],
        "model_type": "maincoder",
        "head_dim": 32,
    }
}
SHAPES = {
    "maincoder": {
        **xverse.SHAPES["xverse"],
        "model.layers.{i}.self_attn.q_proj.weight": [128, 64],
        "model.layers.{i}.self_attn.q_norm.weight": [32],
        "model.layers.{i}.self_attn.k_norm.weight": [32],
        "model.layers.{i}.self_attn.o_proj.weight": [64, 128],
    }
}
LLAMA_CPP = ("maincoder",)
