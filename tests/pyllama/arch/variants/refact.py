"""Tiny checkpoints of ``refact``."""

from __future__ import annotations

VARIANTS = {
    "refact": {
        "architectures": ["GPTRefactForCausalLM"],
        "model_type": "gpt_refact",
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 256,
        "vocab_size": 512,
        "layer_norm_epsilon": 1e-5,
    }
}
SHAPES = {
    "refact": {
        "transformer.wte.weight": [512, 64],
        "transformer.h.{i}.ln_1.weight": [64],
        "transformer.h.{i}.attn.q.weight": [64, 64],
        "transformer.h.{i}.attn.kv.weight": [32, 64],
        "transformer.h.{i}.attn.c_proj.weight": [64, 64],
        "transformer.h.{i}.ln_2.weight": [64],
        "transformer.h.{i}.mlp.gate_up_proj.weight": [512, 64],
        "transformer.h.{i}.mlp.c_proj.weight": [64, 256],
        "transformer.ln_f.weight": [64],
        "lm_head.weight": [512, 64],
    }
}
LLAMA_CPP = ("refact",)
