"""Tiny checkpoints of ``bailingmoe2``."""

from __future__ import annotations

_BASE = {
    "architectures": ["BailingMoeV2ForCausalLM"],
    "model_type": "bailing_moe",
    "hidden_size": 64,
    "intermediate_size": 160,
    "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "use_qk_norm": True,
    "hidden_act": "silu",
    "partial_rotary_factor": 0.5,
    "rope_theta": 600000.0,
    "rope_scaling": None,
    "num_nextn_predict_layers": 0,
    "use_bias": False,
    "use_qkv_bias": False,
}
_SHAPES = {
    "model.word_embeddings.weight": [512, 64],
    "model.layers.{i}.input_layernorm.weight": [64],
    "model.layers.{i}.attention.query_key_value.weight": [128, 64],
    "model.layers.{i}.attention.query_layernorm.weight": [16],
    "model.layers.{i}.attention.key_layernorm.weight": [16],
    "model.layers.{i}.attention.dense.weight": [64, 64],
    "model.layers.{i}.post_attention_layernorm.weight": [64],
    **{
        f"model.layers.{i}.mlp.{name}_proj.weight": shape
        for i in (0, 1)
        for name, shape in {"gate": [160, 64], "up": [160, 64], "down": [64, 160]}.items()
    },
    **{
        f"model.layers.2.mlp.{name}": shape
        for name, shape in {
            "gate.weight": [8, 64],
            "gate.expert_bias": [8],
            "experts.{e}.gate_proj.weight": [48, 64],
            "experts.{e}.up_proj.weight": [48, 64],
            "experts.{e}.down_proj.weight": [64, 48],
            "shared_experts.gate_proj.weight": [64, 64],
            "shared_experts.up_proj.weight": [64, 64],
            "shared_experts.down_proj.weight": [64, 64],
        }.items()
    },
    "model.norm.weight": [64],
    "lm_head.weight": [512, 64],
}
VARIANTS = {
    "bailingmoe2": _BASE,
    "bailingmoe2_sarvam": {
        **{k: x for k, x in _BASE.items() if k != "partial_rotary_factor"},
        "architectures": ["SarvamMoEForCausalLM"],
        "model_type": "sarvam",  # transformers' sarvam_moe has other names of keys
    },
}
SHAPES = {"bailingmoe2": _SHAPES, "bailingmoe2_sarvam": _SHAPES}

LLAMA_CPP = ("bailingmoe2", "bailingmoe2_sarvam")
