"""Tiny checkpoints of ``minimax-m3``."""

from __future__ import annotations

from typing import Any

NAME = "minimax-m3"

VARIANTS: dict[str, dict[str, Any]] = {
    "minimax-m3": {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "model_type": "minimax_m3_vl",
        "text_config": {
            "model_type": "minimax_m3_vl_text",
            "hidden_size": 64,
            "intermediate_size": 96,
            "dense_intermediate_size": 160,
            "shared_intermediate_size": 96,
            "n_shared_experts": 1,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "rotary_dim": 16,
            "max_position_embeddings": 256,
            "vocab_size": 512,
            "rms_norm_eps": 1e-6,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "routed_scaling_factor": 2.0,
            "scoring_func": "sigmoid",
            "use_qk_norm": True,
            "qk_norm_type": "per_head",
            "moe_layer_freq": [0, 1, 1],
            "sparse_attention_config": {
                "sparse_num_index_heads": 2,
                "sparse_index_dim": 32,
                "sparse_topk_blocks": 8,
                "sparse_block_size": 16,
                "sparse_local_block": 1,
                "sparse_attention_freq": [0, 1, 1],
            },
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 5000000.0, "partial_rotary_factor": 0.5,
            },
        },
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 4,
        },
    },
}  # fmt: skip

_M3 = VARIANTS["minimax-m3"]
_CHOSEN = {
    **_M3["text_config"]["sparse_attention_config"],
    "sparse_topk_blocks": 3,
    "sparse_block_size": 4,
}
VARIANTS["minimax-m3_chosen"] = {
    **_M3, "text_config": {**_M3["text_config"], "sparse_attention_config": _CHOSEN},
}  # fmt: skip

LLAMA_CPP = ("minimax-m3",)  # whose server does not choose blocks where texts share the cache
