"""Tiny checkpoints of ``deepseek4``."""

from __future__ import annotations

_PUBLISHED = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "hidden_size": 64,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 48,
    "o_groups": 2,
    "o_lora_rank": 32,
    "sliding_window": 16,
    "compress_ratios": [0, 4, 128, 4],
    "compress_rope_theta": 40000.0,
    "index_n_heads": 4,
    "index_head_dim": 128,  # another size than the heads, or llama.cpp divides by zero
    "index_topk": 64,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "num_hash_layers": 1,
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 0.5,
    "num_nextn_predict_layers": 0,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1,
        "original_max_position_embeddings": 256,
    },
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "vocab_size": 512,
}  # fmt: skip

_LEGACY = ("compress_ratios", "num_hash_layers", "qk_rope_head_dim", "rope_scaling")
VARIANTS = {
    "deepseek4": _PUBLISHED,
    "deepseek4_chosen": {**_PUBLISHED, "index_topk": 3, "index_n_heads": 16},  # no equal scores
    "deepseek4_short_rows": {  # as transformers writes it, of rows that 40 tokens are enough for
        **{name: x for name, x in _PUBLISHED.items() if name not in _LEGACY},
        "num_hidden_layers": 3,
        "layer_types": ["heavily_compressed_attention", "sliding_attention",
                        "compressed_sparse_attention"],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 10},
        "mlp_layer_types": ["moe", "moe", "moe"],
        "hc_mult": 2,
        "o_groups": 4,
        "swiglu_limit": 10.0,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.25},
            "compress": {"rope_type": "default", "rope_theta": 5000.0,
                         "partial_rotary_factor": 0.25},
        },
    },
}  # fmt: skip

LLAMA_CPP = ("deepseek4", "deepseek4_chosen")
