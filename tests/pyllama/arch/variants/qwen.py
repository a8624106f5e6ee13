"""Tiny checkpoints of ``qwen``."""

from __future__ import annotations

VARIANTS = {
    "qwen": {
        "architectures": ["QWenLMHeadModel"],
        "model_type": "qwen",
        "hidden_size": 64,
        "intermediate_size": 320,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "kv_channels": 16,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "layer_norm_epsilon": 1e-6,
        "rotary_emb_base": 10000,
        "rotary_pct": 1.0,
        "no_bias": True,
    }
}
SHAPES = {
    "qwen": {
        "transformer.wte.weight": [512, 64],
        "transformer.h.{i}.ln_1.weight": [64],
        "transformer.h.{i}.attn.c_attn.weight": [192, 64],
        "transformer.h.{i}.attn.c_attn.bias": [192],
        "transformer.h.{i}.attn.c_proj.weight": [64, 64],
        "transformer.h.{i}.ln_2.weight": [64],
        "transformer.h.{i}.mlp.w1.weight": [160, 64],
        "transformer.h.{i}.mlp.w2.weight": [160, 64],
        "transformer.h.{i}.mlp.c_proj.weight": [64, 160],
        "transformer.ln_f.weight": [64],
        "lm_head.weight": [512, 64],
    }
}
LLAMA_CPP = ("qwen",)
