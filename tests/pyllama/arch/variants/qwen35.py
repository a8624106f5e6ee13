"""Tiny checkpoints of ``qwen35``."""

from __future__ import annotations

from typing import Any

from . import qwen3next

VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "patch_size": 4,
    "num_position_embeddings": 16,
    "out_hidden_size": 64,
}
_TEXT = {**qwen3next.MIXERS, "intermediate_size": 160, "linear_num_value_heads": 6}
VARIANTS = {
    "qwen35": {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {
            "model_type": "qwen3_5_text",
            **_TEXT,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000000.0,
                "mrope_section": [2, 1, 1],
                "mrope_interleaved": True,
                "partial_rotary_factor": 0.25,
            },
        },
        "vision_config": VISION,
    },
    "qwen35_text": {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        **_TEXT,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "tie_word_embeddings": True,
    },
}

LLAMA_CPP = ("qwen35", "qwen35_text")
DIFFERENT = {"qwen35": qwen3next.INTERVAL}
