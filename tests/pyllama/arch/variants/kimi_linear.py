"""Tiny checkpoints of ``kimi-linear``."""

from __future__ import annotations

NAME = "kimi-linear"
_BASE = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "hidden_size": 64,
    "intermediate_size": 160,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "model_max_length": 256,
    "rms_norm_eps": 1e-5,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "head_dim": 24,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_experts": 8,
    "num_experts_per_token": 4,
    "num_shared_experts": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False,
    "linear_attn_config": {
        "full_attn_layers": [2],
        "kda_layers": [1, 3],
        "head_dim": 64,
        "num_heads": 4,
        "short_conv_kernel_size": 4,
    },
}
VARIANTS = {
    "kimi-linear": _BASE,
    "kimi-linear_compressed_queries": {
        **_BASE,
        "q_lora_rank": 24,
        "num_shared_experts": 2,
        "linear_attn_config": {
            "full_attn_layers": [1, 3],
            "kda_layers": [2],
            "head_dim": 64,
            "num_heads": 4,
            "short_conv_kernel_size": 3,
        },
    },
}

LLAMA_CPP = ("kimi-linear",)  # llama.cpp loads the others and fails
# the converter's is ``head_dim`` of config.json, which nothing uses
DIFFERENT = dict.fromkeys(VARIANTS, ("attention.value_length",))
