"""Tiny checkpoints of ``deepseek2``."""

from __future__ import annotations

LITE = {  # queries are not compressed, two shared experts
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 64,
    "intermediate_size": 160,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": False,
    "scoring_func": "softmax",
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32,
        "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 64,
    },
}  # fmt: skip
V2 = {
    **LITE,
    "q_lora_rank": 48,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.0,
    "topk_method": "group_limited_greedy",
    "n_group": 4,
    "topk_group": 2,
}
V3 = {
    **V2,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 4,
    "first_k_dense_replace": 2,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "rope_parameters": {**LITE["rope_parameters"], "mscale": 1.0, "mscale_all_dim": 1.0},
}
_OF_EXPERTS = (
    "moe_intermediate_size", "first_k_dense_replace", "n_routed_experts", "num_experts_per_tok",
    "n_shared_experts", "routed_scaling_factor", "norm_topk_prob", "scoring_func", "topk_method",
    "n_group", "topk_group",
)  # fmt: skip
VARIANTS = {
    "deepseek2_lite": LITE,
    "deepseek2": {**V2, "qk_rope_head_dim": 64},
    "deepseek2_v3": V3,
    # rope on halves, biases, another magnitude of rotated columns, no groups
    "deepseek2_v3_halves": {
        **V3,
        "q_lora_rank": None,
        "rope_interleave": False,
        "attention_bias": True,
        "n_group": 1,
        "topk_group": 1,
        "rope_parameters": {**LITE["rope_parameters"], "mscale": 1.0, "mscale_all_dim": 0.5},
    },
    "deepseek2_glm": {
        **V3,
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "rms_norm_eps": 1e-5,
        "num_nextn_predict_layers": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "deepseek2_youtu": {
        **{k: v for k, v in V3.items() if k not in _OF_EXPERTS},
        "architectures": ["YoutuForCausalLM"],
        "model_type": "youtu",
        "v_head_dim": 48,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    },
}

# llama.cpp expects compressed queries in models of 3 layers, and has other groups for softmax
LLAMA_CPP = ("deepseek2_v3", "deepseek2_glm", "deepseek2_youtu")
