"""Tiny checkpoints of ``spark2_5``."""

from __future__ import annotations

_SLIDING, _FULL = "sliding_attention", "full_attention"
VARIANTS = {
    "spark2_5": {
        "architectures": ["Spark2_5ForCausalLM"],
        "model_type": "spark2_5",
        "hidden_size": 64,
        "intermediate_size": 64,  # small: llama.cpp takes GELU from a table in F16
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "hidden_act": "gelu",
        "headwise_attn_output_gate": True,
        "gate_attn_act_mode": "sigmoid",
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-6,
        "sliding_window": 16,
        "layer_types": [_SLIDING, _FULL, _SLIDING],
        "rope_parameters": {
            "full_attention": {
                "rope_type": "default",
                "rope_theta": 5000000.0,
                "partial_rotary_factor": 0.5,
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 1.0,
            },
        },
        "tie_word_embeddings": True,
    },
}

LLAMA_CPP = ("spark2_5",)

_LAYER = "model.layers.{i}"
SHAPES = {
    "spark2_5": {
        "model.embed_tokens.weight": [512, 64],
        f"{_LAYER}.input_layernorm.weight": [64],
        f"{_LAYER}.self_attn.q_k_v_proj.weight": [1536, 64],
        f"{_LAYER}.self_attn.g_proj.weight": [8, 64],
        f"{_LAYER}.self_attn.o_proj.weight": [64, 1024],
        f"{_LAYER}.post_attention_layernorm.weight": [64],
        f"{_LAYER}.mlp.gate_proj.weight": [64, 64],
        f"{_LAYER}.mlp.up_proj.weight": [64, 64],
        f"{_LAYER}.mlp.down_proj.weight": [64, 64],
        "model.norm.weight": [64],
    },
}
