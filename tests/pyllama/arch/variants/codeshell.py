"""Tiny checkpoints of ``codeshell``."""

from __future__ import annotations

_BASE = {
    "architectures": ["CodeShellForCausalLM"],
    "model_type": "codeshell",
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "num_query_groups": 2,
    "n_positions": 256,
    "vocab_size": 512,
    "layer_norm_epsilon": 1e-5,
    "position_embedding_type": "rope",
}
VARIANTS = {"codeshell": {**_BASE, "n_head": 8}, "codeshell_tied": _BASE}

_SHAPES = {
    "transformer.h.{i}.ln_1.weight": [64],
    "transformer.h.{i}.ln_1.bias": [64],
    "transformer.h.{i}.attn.c_attn.weight": [128, 64],
    "transformer.h.{i}.attn.c_attn.bias": [128],
    "transformer.h.{i}.attn.c_proj.weight": [64, 64],
    "transformer.h.{i}.attn.c_proj.bias": [64],
    "transformer.h.{i}.ln_2.weight": [64],
    "transformer.h.{i}.ln_2.bias": [64],
    "transformer.h.{i}.mlp.c_fc.weight": [256, 64],
    "transformer.h.{i}.mlp.c_fc.bias": [256],
    "transformer.h.{i}.mlp.c_proj.weight": [64, 256],
    "transformer.h.{i}.mlp.c_proj.bias": [64],
    "transformer.ln_f.weight": [64],
    "transformer.ln_f.bias": [64],
    "lm_head.weight": [512, 64],
}
SHAPES = {
    "codeshell": {
        **_SHAPES,
        "transformer.wte.weight": [512, 64],
        "transformer.h.{i}.attn.c_attn.weight": [96, 64],
        "transformer.h.{i}.attn.c_attn.bias": [96],
    },
    "codeshell_tied": _SHAPES,
}
LLAMA_CPP = ("codeshell", "codeshell_tied")
