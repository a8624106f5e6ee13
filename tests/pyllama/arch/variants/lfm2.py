"""Tiny checkpoints of ``lfm2``."""

from __future__ import annotations

from typing import Any

from .falcon_h1 import LLAMA3

_TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "conv_bias": False,
    "conv_L_cache": 3,
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    "block_auto_adjust_ff_dim": False,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 32,
}
_BASE = {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", **_TEXT}
VARIANTS = {
    "lfm2": _BASE,
    "lfm2_adjusted": {
        **_BASE,
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "conv", "conv"],
        "conv_L_cache": 4,
        "block_auto_adjust_ff_dim": True,
        "tie_word_embeddings": False,
    },
    "lfm2_llama3": {**_BASE, "rope_scaling": {**LLAMA3}, "block_multiple_of": 64},
    "lfm2_vl": {
        "architectures": ["Lfm2VlForConditionalGeneration"],
        "model_type": "lfm2_vl",
        "text_config": {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", **_TEXT},
        "vision_config": {
            "model_type": "siglip2_vision_model",
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_patches": 16,
            "patch_size": 4,
        },
        "projector_hidden_size": 32,
    },
}

LLAMA_CPP = ("lfm2", "lfm2_adjusted", "lfm2_vl")
DIFFERENT = {"lfm2_llama3": ("rope_freqs.weight",)}  # llama.cpp's converter does not take it
