"""Tiny checkpoints of ``plamo``; llama.cpp's converter takes only PLaMo-13B's own sizes."""

from __future__ import annotations

VARIANTS = {
    "plamo": {
        "architectures": ["PlamoForCausalLM"],
        "model_type": "plamo",
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "n_shared_head": 2,
        "vocab_size": 512,
        "rms_norm_eps": 1e-6,
    }
}
SHAPES = {
    "plamo": {
        "model.embed_tokens.weight": [512, 96],
        "model.layers.layers.{i}.norm.weight": [96],
        "model.layers.layers.{i}.self_attn.q_proj.weight": [96, 96],
        "model.layers.layers.{i}.self_attn.k_proj.weight": [48, 96],
        "model.layers.layers.{i}.self_attn.v_proj.weight": [48, 96],
        "model.layers.layers.{i}.self_attn.o_proj.weight": [96, 96],
        "model.layers.layers.{i}.mlp.gate_proj.weight": [160, 96],
        "model.layers.layers.{i}.mlp.up_proj.weight": [160, 96],
        "model.layers.layers.{i}.mlp.down_proj.weight": [96, 160],
        "model.norm.weight": [96],
        "lm_head.weight": [512, 96],
    }
}
LLAMA_CPP = ("plamo",)
