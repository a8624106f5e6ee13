"""Tiny checkpoints of ``qwen3vlmoe``."""

from __future__ import annotations

from . import qwen3vl

VARIANTS = {
    "qwen3vlmoe": {
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "model_type": "qwen3_vl_moe",
        "text_config": {
            "model_type": "qwen3_vl_moe_text",
            **qwen3vl.TEXT,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 96,
            "norm_topk_prob": True,
            "mlp_only_layers": [],
            "decoder_sparse_step": 1,
        },
        "vision_config": qwen3vl.VISION,
    },
}

LLAMA_CPP = ("qwen3vlmoe",)
