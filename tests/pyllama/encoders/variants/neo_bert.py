"""Variants of NeoBERT, which transformers lacks."""

from __future__ import annotations

from typing import Any

NAME = "neo-bert"
_NEO: dict[str, Any] = {
    "architectures": ["NeoBERT"],
    "model_type": "neobert",
    "hidden_size": 64,
    "intermediate_size": 144,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_length": 512,
    "vocab_size": 512,
    "norm_eps": 1e-5,
    "hidden_act": "SwiGLU",
    "pad_token_id": 0,
}
VARIANTS = {"neo-bert": _NEO}
SHAPES = {
    "neo-bert": {
        "model.encoder.weight": [512, 64],
        "model.transformer_encoder.{i}.attention_norm.weight": [64],
        "model.transformer_encoder.{i}.qkv.weight": [192, 64],
        "model.transformer_encoder.{i}.wo.weight": [64, 64],
        "model.transformer_encoder.{i}.ffn_norm.weight": [64],
        "model.transformer_encoder.{i}.ffn.w12.weight": [192, 64],
        "model.transformer_encoder.{i}.ffn.w3.weight": [64, 96],
        "model.layer_norm.weight": [64],
        "decoder.weight": [512, 64],
        "decoder.bias": [512],
    }
}
LLAMA_CPP = ("neo-bert",)
