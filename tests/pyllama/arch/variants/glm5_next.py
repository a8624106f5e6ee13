"""Tiny checkpoints of ``glm5-next``: two layers of attention between others."""

from __future__ import annotations

from typing import Any

NAME = "glm5-next"
_TEXT: dict[str, Any] = {
    "model_type": "glm5_next_text",
    "hidden_size": 64,
    "intermediate_size": 160,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "q_lora_rank": 48,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 0,
    "v_head_dim": 32,
    "mla_use_nope": True,
    "mhc": True,
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 5,
    "layer_types": [
        "linear_attention", "full_attention", "full_attention", "linear_attention",
    ],
    "linear_attn_config": {
        "head_dim": 64, "num_heads": 4, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
        "safe_gate": True,
    },
    "index_n_heads": 4,
    "index_head_dim": 64,
    "index_topk": 64,
    "index_kpool": 8,
    "index_kpool_always_select_tail": True,
    "indexer_types": ["full", "full", "shared", "full"],
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sigmoid",
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "first_k_dense_replace": 1,
    "swiglu_limit": 0.5,
    "hidden_act": "silu",
    "attention_bias": False,
    "pad_token_id": None,
    "num_nextn_predict_layers": 0,
}  # fmt: skip
_VISION = {
    "hidden_size": 16,
    "depth": 1,
    "num_heads": 2,
    "intermediate_size": 32,
    "out_hidden_size": 64,
    "projection_intermediate_size": 32,
    "image_size": 28,
    "patch_size": 14,
}
_BASE = {
    "architectures": ["Glm5NextForConditionalGeneration"],
    "model_type": "glm5_next",
    "text_config": _TEXT,
    "vision_config": _VISION,
    "tie_word_embeddings": False,
}
VARIANTS = {
    "glm5-next": _BASE,
    "glm5-next_chosen": {**_BASE, "text_config": {**_TEXT, "index_topk": 16, "index_n_heads": 8}},
}

LLAMA_CPP = ("glm5-next", "glm5-next_chosen")
