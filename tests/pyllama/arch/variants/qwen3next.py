"""Tiny checkpoints of ``qwen3next``."""

from __future__ import annotations

from typing import Any

from .falcon_h1 import LLAMA3

MIXERS: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,  # in smaller ones some queries have no key near them to read
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
EXPERTS = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "num_experts": 8,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}
_BASE = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "intermediate_size": 160,
    **MIXERS,
    **EXPERTS,
}
VARIANTS = {
    "qwen3next": _BASE,
    "qwen3next_listed": {
        **_BASE,
        "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        "linear_num_value_heads": 2,
        "linear_conv_kernel_dim": 3,
        "tie_word_embeddings": True,
    },
    "qwen3next_llama3": {**_BASE, "rope_scaling": {**LLAMA3}},
}

LLAMA_CPP = ("qwen3next", "qwen3next_listed")
# transformers' configurations do not have it unless kinds of layers are listed, so llama.cpp's
# converter writes 4
INTERVAL = ("full_attention_interval",)
DIFFERENT = {"qwen3next": INTERVAL, "qwen3next_llama3": (*INTERVAL, "rope_freqs.weight")}
