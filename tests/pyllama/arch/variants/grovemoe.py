"""Tiny checkpoints of ``grovemoe``."""

from __future__ import annotations

VARIANTS = {
    "grovemoe": {
        "architectures": ["GroveMoeForCausalLM"],
        "model_type": "grove_moe",
        "hidden_size": 64,
        "intermediate_size": 160,
        "moe_intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
    },
}

LLAMA_CPP = ("grovemoe",)

_LAYER = "model.layers.{i}"
_EXPERT = f"{_LAYER}.mlp.experts.{{e}}"
SHAPES = {
    "grovemoe": {
        "model.embed_tokens.weight": [512, 64],
        f"{_LAYER}.input_layernorm.weight": [64],
        f"{_LAYER}.self_attn.q_proj.weight": [128, 64],
        f"{_LAYER}.self_attn.q_norm.weight": [32],
        f"{_LAYER}.self_attn.k_proj.weight": [64, 64],
        f"{_LAYER}.self_attn.k_norm.weight": [32],
        f"{_LAYER}.self_attn.v_proj.weight": [64, 64],
        f"{_LAYER}.self_attn.o_proj.weight": [64, 128],
        f"{_LAYER}.post_attention_layernorm.weight": [64],
        f"{_LAYER}.mlp.gate.weight": [8, 64],
        f"{_EXPERT}.gate_proj.weight": [96, 64],
        f"{_EXPERT}.up_proj.weight": [96, 64],
        f"{_EXPERT}.down_proj.weight": [64, 96],
        **{
            f"{_LAYER}.mlp.chunk_experts.{e}.{part}_proj.weight": shape
            for e in range(4)
            for part, shape in (("gate", [32, 64]), ("up", [32, 64]), ("down", [64, 32]))
        },
        "model.norm.weight": [64],
        "lm_head.weight": [512, 64],
    },
}
