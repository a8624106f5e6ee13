"""Tiny checkpoints of ``kimi-k3``."""

from __future__ import annotations

from typing import Any

NAME = "kimi-k3"
_BASE: dict[str, Any] = {
    "architectures": ["KimiK3ForConditionalGeneration"],
    "model_type": "kimi_k3",
    "text_config": {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "hidden_size": 64,
        "intermediate_size": 160,
        "moe_intermediate_size": 32,
        "routed_expert_hidden_size": 32,
        "latent_moe_use_norm": True,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 512,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "kv_lora_rank": 32,
        "q_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 24,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "attn_res_block_size": 3,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "num_experts": 8,
        "num_experts_per_token": 6,
        "num_shared_experts": 2,
        "num_expert_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "use_grouped_topk": True,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "routed_scaling_factor": 1.5,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False,
        "linear_attn_config": {
            "full_attn_layers": [2, 4],
            "kda_layers": [1, 3],
            "head_dim": 64,
            "num_heads": 4,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
            "use_full_rank_gate": True,
        },
    },
}
_LINEAR = {
    "full_attn_layers": [2],
    "kda_layers": [1, 3],
    "head_dim": 64,
    "num_heads": 4,
    "short_conv_kernel_size": 4,
    "use_full_rank_gate": True,
}
_PLAIN = {  # the parts that the configuration may lack
    **_BASE["text_config"],
    "num_hidden_layers": 3,
    "q_lora_rank": None,
    "routed_expert_hidden_size": None,
    "latent_moe_use_norm": False,
    "mla_use_output_gate": False,
    "attn_res_block_size": 0,
    "num_shared_experts": 0,
    "num_experts_per_token": 4,
    "moe_renormalize": False,
    "activation_situ_beta": 0.5,
    "activation_situ_linear_beta": 0.75,
    "linear_attn_config": _LINEAR,
}
VARIANTS = {"kimi-k3": _BASE, "kimi-k3_plain": {**_BASE, "text_config": _PLAIN}}

_DELTA = {
    **{f"self_attn.{x}_proj.weight": [256, 64] for x in "qkvg"},
    **{f"self_attn.{x}_conv1d.weight": [256, 1, 4] for x in "qkv"},
    "self_attn.f_a_proj.weight": [64, 64],
    "self_attn.f_b_proj.weight": [256, 64],
    "self_attn.b_proj.weight": [4, 64],
    "self_attn.A_log": [4],
    "self_attn.dt_bias": [256],
    "self_attn.o_norm.weight": [64],
    "self_attn.o_proj.weight": [64, 256],
}
_LATENT = {
    "self_attn.kv_a_proj_with_mqa.weight": [40, 64],
    "self_attn.kv_a_layernorm.weight": [32],
    "self_attn.kv_b_proj.weight": [160, 32],
    "self_attn.o_proj.weight": [64, 96],
}
_COMPRESSED = {
    "self_attn.q_a_proj.weight": [24, 64],
    "self_attn.q_a_layernorm.weight": [24],
    "self_attn.q_b_proj.weight": [96, 24],
    "self_attn.g_proj.weight": [96, 64],
}
_RESIDUALS = {
    "self_attention_res_norm.weight": [64],
    "self_attention_res_proj.weight": [1, 64],
    "mlp_res_norm.weight": [64],
    "mlp_res_proj.weight": [1, 64],
}
_DENSE = {
    "mlp.gate_proj.weight": [160, 64],
    "mlp.up_proj.weight": [160, 64],
    "mlp.down_proj.weight": [64, 160],
}


def _experts(n_in: int) -> dict[str, list[int]]:
    parts = {
        "gate.weight": [8, 64],
        "gate.e_score_correction_bias": [8],
        "experts.{e}.w1.weight": [32, n_in],
        "experts.{e}.w2.weight": [n_in, 32],
        "experts.{e}.w3.weight": [32, n_in],
    }
    return {f"block_sparse_moe.{part}": shape for part, shape in parts.items()}


_LATENT_EXPERTS = {
    **_experts(32),
    "block_sparse_moe.routed_expert_down_proj.weight": [32, 64],
    "block_sparse_moe.routed_expert_norm.weight": [32],
    "block_sparse_moe.routed_expert_up_proj.weight": [64, 32],
    "block_sparse_moe.shared_experts.gate_proj.weight": [64, 64],
    "block_sparse_moe.shared_experts.up_proj.weight": [64, 64],
    "block_sparse_moe.shared_experts.down_proj.weight": [64, 64],
}


def _shapes(attends: str, is_whole: bool) -> dict[str, list[int]]:
    found = {"model.embed_tokens.weight": [512, 64]}
    latent = {**_LATENT, **(_COMPRESSED if is_whole else {"self_attn.q_proj.weight": [96, 64]})}
    for i, letter in enumerate(attends):
        parts = {"input_layernorm.weight": [64], "post_attention_layernorm.weight": [64]}
        parts |= _RESIDUALS if is_whole else {}
        parts |= latent if letter == "A" else _DELTA
        parts |= (_LATENT_EXPERTS if is_whole else _experts(64)) if i else _DENSE
        found |= {f"model.layers.{i}.{part}": shape for part, shape in parts.items()}
    if is_whole:
        found |= {
            "model.output_attn_res_norm.weight": [64],
            "model.output_attn_res_proj.weight": [1, 64],
        }
    found |= {"model.norm.weight": [64], "lm_head.weight": [512, 64]}
    return {f"language_model.{name}": shape for name, shape in found.items()}


SHAPES = {"kimi-k3": _shapes("KAKA", True), "kimi-k3_plain": _shapes("KAK", False)}
LLAMA_CPP = ("kimi-k3", "kimi-k3_plain")
