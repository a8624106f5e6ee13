"""Tiny checkpoints of ``qwen35moe``."""

from __future__ import annotations

from . import qwen3next, qwen35

VARIANTS = {
    "qwen35moe": {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            **qwen3next.MIXERS,
            **qwen3next.EXPERTS,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000000.0,
                "mrope_section": [2, 1, 1],
                "mrope_interleaved": True,
                "partial_rotary_factor": 0.25,
            },
        },
        "vision_config": qwen35.VISION,
    },
}

LLAMA_CPP = ("qwen35moe",)
DIFFERENT = {"qwen35moe": qwen3next.INTERVAL}
