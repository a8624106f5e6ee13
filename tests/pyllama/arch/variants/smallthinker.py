"""Tiny checkpoints of ``smallthinker``."""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "architectures": ["SmallThinkerForCausalLM"],
    "model_type": "smallthinker",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "moe_ffn_hidden_size": 96,
    "moe_num_primary_experts": 8,
    "moe_num_active_primary_experts": 3,
    "num_local_experts": 8,  # for llama.cpp's converter and the shapes here
}
VARIANTS = {
    "smallthinker": {
        **_BASE,
        "num_hidden_layers": 5,  # llama.cpp has rope in all layers of a model with 4
        "moe_primary_router_apply_softmax": False,
        "sliding_window_layout": [0, 1, 1, 1, 0],
        "sliding_window_size": 4096,  # llama.cpp has no other
        "rope_layout": [0, 1, 1, 1, 0],
    },
    "smallthinker_full": {
        **_BASE,
        "moe_primary_router_apply_softmax": True,
        "sliding_window_layout": [0, 0, 0, 0],
        "rope_layout": [1, 1, 1, 1],
        "tie_word_embeddings": True,
    },
}
_SHAPES = {
    "model.embed_tokens.weight": [512, 64],
    "model.layers.{i}.input_layernorm.weight": [64],
    "model.layers.{i}.self_attn.q_proj.weight": [128, 64],
    "model.layers.{i}.self_attn.k_proj.weight": [64, 64],
    "model.layers.{i}.self_attn.v_proj.weight": [64, 64],
    "model.layers.{i}.self_attn.o_proj.weight": [64, 128],
    "model.layers.{i}.post_attention_layernorm.weight": [64],
    "model.layers.{i}.block_sparse_moe.primary_router.weight": [8, 64],
    "model.layers.{i}.block_sparse_moe.experts.{e}.gate.weight": [96, 64],
    "model.layers.{i}.block_sparse_moe.experts.{e}.up.weight": [96, 64],
    "model.layers.{i}.block_sparse_moe.experts.{e}.down.weight": [64, 96],
    "model.norm.weight": [64],
}
SHAPES = {
    "smallthinker": {**_SHAPES, "lm_head.weight": [512, 64]},
    "smallthinker_full": _SHAPES,
}

LLAMA_CPP = ("smallthinker", "smallthinker_full")
