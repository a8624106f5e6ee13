"""Tiny checkpoints of ``maple``."""

from __future__ import annotations

_SLIDING, _FULL = "sliding_attention", "full_attention"
VARIANTS = {
    "maple": {
        "architectures": ["MapleForCausalLM"],
        "model_type": "maple",
        "hidden_size": 64,
        "intermediate_size": 160,
        "moe_intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "sliding_window": 16,
        "layer_types": [_SLIDING, _FULL, _SLIDING],
        "nope_on_global_attention": True,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "num_shared_experts": 0,
    },
}

LLAMA_CPP = ("maple",)

_LAYER = "model.layers.{i}"
_EXPERT = f"{_LAYER}.mlp.experts.{{e}}"
SHAPES = {
    "maple": {
        "model.embed_tokens.weight": [512, 64],
        f"{_LAYER}.input_layernorm.weight": [64],
        f"{_LAYER}.self_attn.q_proj.weight": [128, 64],
        f"{_LAYER}.self_attn.q_norm.weight": [32],
        f"{_LAYER}.self_attn.k_proj.weight": [64, 64],
        f"{_LAYER}.self_attn.k_norm.weight": [32],
        f"{_LAYER}.self_attn.v_proj.weight": [64, 64],
        f"{_LAYER}.self_attn.o_proj.weight": [64, 128],
        f"{_LAYER}.post_attention_layernorm.weight": [64],
        f"{_LAYER}.mlp.gate.weight": [4, 64],
        f"{_EXPERT}.gate_proj.weight": [96, 64],
        f"{_EXPERT}.up_proj.weight": [96, 64],
        f"{_EXPERT}.down_proj.weight": [64, 96],
        "model.norm.weight": [64],
        "lm_head.weight": [512, 64],
    },
}
