"""Tiny checkpoints of ``qwen3vl``."""

from __future__ import annotations

from typing import Any

VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "patch_size": 4,
    "num_position_embeddings": 16,
    "out_hidden_size": 64,
    "deepstack_visual_indexes": [0, 1],
}
TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000000.0,
    "rope_scaling": {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True},
}
VARIANTS = {
    "qwen3vl": {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": {"model_type": "qwen3_vl_text", **TEXT},
        "vision_config": VISION,
    },
}

LLAMA_CPP = ("qwen3vl",)
