"""Tiny checkpoints of ``arctic``."""

from __future__ import annotations

from . import llama

VARIANTS = {
    "arctic": {
        "architectures": ["ArcticForCausalLM"],
        "model_type": "arctic",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "moe_layer_frequency": 1,
        "parallel_attn_mlp_res": True,
        "use_residual": True,
    },
}
SHAPES = {
    "arctic": {
        **llama.ATTENTION,
        "model.layers.{i}.residual_layernorm.weight": [64],
        "model.layers.{i}.residual_mlp.w1.weight": [64, 64],
        "model.layers.{i}.residual_mlp.w2.weight": [64, 64],
        "model.layers.{i}.residual_mlp.w3.weight": [64, 64],
        "model.layers.{i}.block_sparse_moe.gate.weight": [8, 64],
        "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight": [96, 64],
        "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight": [64, 96],
        "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight": [96, 64],
    }
}

LLAMA_CPP = ("arctic",)
