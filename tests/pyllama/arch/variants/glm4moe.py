"""Tiny checkpoints of ``glm4moe``."""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "hidden_size": 64,
    "intermediate_size": 160,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "attention_bias": True,
    "use_qk_norm": False,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "partial_rotary_factor": 0.5,
    "num_nextn_predict_layers": 0,
    "rope_theta": 10000.0,
}
VARIANTS = {
    "glm4moe": _BASE,
    "glm4moe_norms": {
        **_BASE,
        "use_qk_norm": True,
        "n_shared_experts": 2,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 4,
        "norm_topk_prob": False,
        "routed_scaling_factor": 2.5,
    },
    "glm4moe_solar": {
        **{k: v for k, v in _BASE.items() if "nextn" not in k and "rotary" not in k},
        "architectures": ["SolarOpenForCausalLM"],
        "model_type": "solar_open",
        "first_k_dense_replace": 0,
        "attention_bias": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0,
        },
    },
    "glm4moe_drafting": {
        **_BASE,
        "attention_bias": False,
        "num_nextn_predict_layers": 1,
    },
}
_LAYER = {
    "input_layernorm": [64],
    "self_attn.q_proj": [128, 64],
    "self_attn.k_proj": [64, 64],
    "self_attn.v_proj": [64, 64],
    "self_attn.o_proj": [64, 128],
    "post_attention_layernorm": [64],
}
_EXPERTS = {
    "mlp.gate": [8, 64],
    "mlp.experts.{e}.gate_proj": [96, 64],
    "mlp.experts.{e}.up_proj": [96, 64],
    "mlp.experts.{e}.down_proj": [64, 96],
    "mlp.shared_experts.gate_proj": [96, 64],
    "mlp.shared_experts.up_proj": [96, 64],
    "mlp.shared_experts.down_proj": [64, 96],
}
_DENSE = {
    "mlp.gate_proj": [160, 64],
    "mlp.up_proj": [160, 64],
    "mlp.down_proj": [64, 160],
}
_DRAFTING = {
    "embed_tokens": [512, 64],
    "eh_proj": [64, 128],
    "enorm": [64],
    "hnorm": [64],
    "shared_head.head": [512, 64],
    "shared_head.norm": [64],
}
SHAPES = {
    "glm4moe_drafting": {
        "model.embed_tokens.weight": [512, 64],
        **{
            f"model.layers.{i}.{name}.weight": shape
            for i, parts in enumerate((_DENSE, _EXPERTS, _EXPERTS, {**_EXPERTS, **_DRAFTING}))
            for name, shape in {**_LAYER, **parts}.items()
        },
        "model.layers.1.mlp.gate.e_score_correction_bias": [8],
        "model.layers.2.mlp.gate.e_score_correction_bias": [8],
        "model.layers.3.mlp.gate.e_score_correction_bias": [8],
        "model.norm.weight": [64],
        "lm_head.weight": [512, 64],
    }
}

LLAMA_CPP = ("glm4moe", "glm4moe_norms", "glm4moe_solar", "glm4moe_drafting")
