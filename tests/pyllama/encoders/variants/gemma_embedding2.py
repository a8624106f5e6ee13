"""Variants of EmbeddingGemma 2: as part of a multimodal model, and the text model alone."""

from __future__ import annotations

from typing import Any

from .gemma_embedding import modules

_TEXT: dict[str, Any] = {
    "model_type": "embedding_gemma2_text",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "per_layer_config": {
        "2": {"head_dim": 32, "num_key_value_heads": 1},
        "3": {"head_dim": 32, "num_key_value_heads": 1},
    },
    "layer_types": [*["sliding_attention"] * 2, *["full_attention"] * 2],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "max_position_embeddings": 512,
    "vocab_size": 512,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "sliding_window": 8,
    "hidden_size_per_layer_input": 24,
    "embedding_dim": 96,
}
NAME = "gemma-embedding2"
VARIANTS = {
    "gemma-embedding2": {
        "architectures": ["EmbeddingGemma2Model"],
        "model_type": "embedding_gemma2",
        "text_config": _TEXT,
        "vision_config": None,
        "audio_config": None,
    },
    "gemma-embedding2_text": {
        **_TEXT,
        "architectures": ["EmbeddingGemma2TextModel"],
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "per_layer_config": {
            "1": {"head_dim": 64, "num_key_value_heads": 4},
            "2": {"head_dim": 64, "num_key_value_heads": 4},
        },
        "hidden_activation": "silu",
        "sliding_window": 3,
        "embedding_dim": 32,
    },
}
FILES = {"gemma-embedding2": modules()}
LLAMA_CPP = ("gemma-embedding2",)
