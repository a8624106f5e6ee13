"""Tiny checkpoints of ``qwen3moe``."""

from __future__ import annotations

from . import qwen3

VARIANTS = {
    "qwen3moe": {
        **qwen3.VARIANTS["qwen3"],
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 96,
        "norm_topk_prob": True,
    },
    "qwen3moe_unscaled": {
        **{k: x for k, x in qwen3.VARIANTS["qwen3"].items() if k != "rms_norm_eps"},
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 96,
        "use_sliding_window": True,
        "sliding_window": 16,
    },
}

LLAMA_CPP = ("qwen3moe",)
