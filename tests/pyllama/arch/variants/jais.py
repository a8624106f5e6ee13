"""Tiny checkpoints of ``jais``."""

from __future__ import annotations

_BASE = {
    "architectures": ["JAISLMHeadModel"],
    "model_type": "jais",
    "n_embd": 64,
    "n_inner": 160,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "vocab_size": 512,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "swiglu",
    "position_embedding_type": "alibi",
    "mup_scale_qk_dot_by_d": True,
    "mup_embeddings_scale": 1.5,
    "mup_output_alpha": 2.0,
    "mup_width_scale": 0.25,
}
VARIANTS = {"jais": _BASE}

SHAPES = {
    "jais": {
        "transformer.wte.weight": [512, 64],
        "transformer.h.{i}.ln_1.weight": [64],
        "transformer.h.{i}.ln_1.bias": [64],
        "transformer.h.{i}.attn.c_attn.weight": [64, 192],
        "transformer.h.{i}.attn.c_attn.bias": [192],
        "transformer.h.{i}.attn.c_proj.weight": [64, 64],
        "transformer.h.{i}.attn.c_proj.bias": [64],
        "transformer.h.{i}.ln_2.weight": [64],
        "transformer.h.{i}.ln_2.bias": [64],
        "transformer.h.{i}.mlp.c_fc.weight": [64, 160],
        "transformer.h.{i}.mlp.c_fc.bias": [160],
        "transformer.h.{i}.mlp.c_fc2.weight": [64, 160],
        "transformer.h.{i}.mlp.c_fc2.bias": [160],
        "transformer.h.{i}.mlp.c_proj.weight": [160, 64],
        "transformer.h.{i}.mlp.c_proj.bias": [64],
        "transformer.ln_f.weight": [64],
        "transformer.ln_f.bias": [64],
        "lm_head.weight": [512, 64],
    }
}
LLAMA_CPP = ("jais",)
