"""Tiny checkpoints of ``baichuan``: the 7B model with rope, the 13B model with ALiBi."""

from __future__ import annotations

from . import xverse

_7B = {
    **xverse.VARIANTS["xverse"],
    "architectures": ["BaichuanForCausalLM"],
    "model_type": "baichuan",
    "num_hidden_layers": 32,  # decides how the model is run
}
VARIANTS = {"baichuan": _7B, "baichuan_13b": {**_7B, "num_hidden_layers": 40}}

_SHAPES = {
    **{k: v for k, v in xverse.SHAPES["xverse"].items() if "self_attn" not in k},
    "model.layers.{i}.self_attn.W_pack.weight": [192, 64],
    "model.layers.{i}.self_attn.o_proj.weight": [64, 64],
}
SHAPES = {"baichuan": _SHAPES, "baichuan_13b": _SHAPES}
LLAMA_CPP = ("baichuan", "baichuan_13b")
