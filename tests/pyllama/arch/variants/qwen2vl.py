"""Tiny checkpoints of ``qwen2vl``."""

from __future__ import annotations

from typing import Any

_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "patch_size": 4,
}
_TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
}
VARIANTS = {
    "qwen2vl": {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "text_config": {"model_type": "qwen2_vl_text", **_TEXT},
        "vision_config": {"embed_dim": 16, **_VISION, "hidden_size": 64},
    },
    "qwen2vl_25": {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "text_config": {"model_type": "qwen2_5_vl_text", **_TEXT, "tie_word_embeddings": True},
        "tie_word_embeddings": True,
        "vision_config": {**_VISION, "out_hidden_size": 64, "fullatt_block_indexes": [0]},
    },
}

LLAMA_CPP = ("qwen2vl", "qwen2vl_25")
