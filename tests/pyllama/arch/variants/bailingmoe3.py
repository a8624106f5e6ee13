"""Tiny checkpoints of ``bailingmoe3``: every second layer and the last one have attention."""

from __future__ import annotations

_BASE = {
    "architectures": ["BailingMoeV3ForCausalLM"],
    "model_type": "bailing_moe_v3",
    "hidden_size": 64,
    "intermediate_size": 160,
    "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "layer_group_size": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "short_conv_kernel_size": 4,
    "kda_safe_gate": True,
    "kda_lower_bound": -5.0,
    "no_kda_lora": True,
    "gated_attention_proj_granularity_type": "head_wise",
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "hidden_act": "silu",
    "rope_theta": 600000.0,
    "num_nextn_predict_layers": 0,
}
_COMPRESSED = {
    **_BASE,
    "num_hidden_layers": 3,
    "q_lora_rank": 40,
    "expert_swiglu_limit_list": [None, 0.5, 0.25],
    "share_expert_swiglu_limit_list": [None, 0.75],
}
VARIANTS = {"bailingmoe3": _BASE, "bailingmoe3_compressed": _COMPRESSED}

_DELTA = {
    **{f"attention.{x}_proj.weight": [256, 64] for x in "qkvfg"},
    **{f"attention.{x}_conv1d.weight": [256, 1, 4] for x in "qkv"},
    "attention.b_proj.weight": [4, 64],
    "attention.A_log": [4],
    "attention.dt_bias": [256],
    "attention.o_norm.weight": [64],
    "attention.o_proj.weight": [64, 256],
}
_LATENT = {
    "attention.kv_a_proj_with_mqa.weight": [40, 64],
    "attention.kv_a_layernorm.weight": [32],
    "attention.kv_b_proj.weight": [160, 32],
    "attention.g_proj.weight": [4, 64],
    "attention.dense.weight": [64, 96],
}
_QUERY = {
    "bailingmoe3": {"attention.q_proj.weight": [96, 64]},
    "bailingmoe3_compressed": {
        "attention.q_a_proj.weight": [40, 64],
        "attention.q_a_layernorm.weight": [40],
        "attention.q_b_proj.weight": [96, 40],
    },
}
_DENSE = {
    f"mlp.{name}_proj.weight": [64, 160] if name == "down" else [160, 64]
    for name in ("gate", "up", "down")
}
_EXPERTS = {
    "mlp.gate.weight": [8, 64],
    "mlp.gate.expert_bias": [8],
    "mlp.experts.{e}.gate_proj.weight": [48, 64],
    "mlp.experts.{e}.up_proj.weight": [48, 64],
    "mlp.experts.{e}.down_proj.weight": [64, 48],
    "mlp.shared_experts.gate_proj.weight": [64, 64],
    "mlp.shared_experts.up_proj.weight": [64, 64],
    "mlp.shared_experts.down_proj.weight": [64, 64],
}


def _shapes(name: str, attends: tuple[bool, ...]) -> dict[str, list[int]]:
    found = {"model.word_embeddings.weight": [512, 64]}
    for i, latent in enumerate(attends):
        parts = {"input_layernorm.weight": [64], "post_attention_layernorm.weight": [64]}
        parts |= {**_LATENT, **_QUERY[name]} if latent else _DELTA
        parts |= _EXPERTS if i else _DENSE
        found |= {f"model.layers.{i}.{part}": shape for part, shape in parts.items()}
    return found | {"model.norm.weight": [64], "lm_head.weight": [512, 64]}


SHAPES = {
    "bailingmoe3": _shapes("bailingmoe3", (False, True, False, True)),
    "bailingmoe3_compressed": _shapes("bailingmoe3_compressed", (False, True, True)),
}
LLAMA_CPP = ("bailingmoe3", "bailingmoe3_compressed")
# the converter's is ``head_dim`` of config.json, which nothing uses
DIFFERENT = dict.fromkeys(VARIANTS, ("attention.value_length",))
