"""Tiny checkpoints of ``plm``."""

from __future__ import annotations

VARIANTS = {
    "plm": {
        "architectures": ["PLMForCausalLM"],
        "model_type": "plm",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "hidden_act": "relu2",
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
}

LLAMA_CPP = ("plm",)

_LAYER = "model.layers.{i}"
SHAPES = {
    "plm": {
        "model.embed_tokens.weight": [512, 64],
        f"{_LAYER}.input_layernorm.weight": [64],
        f"{_LAYER}.self_attn.q_proj.weight": [192, 64],
        f"{_LAYER}.self_attn.kv_a_proj_with_mqa.weight": [48, 64],
        f"{_LAYER}.self_attn.kv_a_layernorm.weight": [32],
        f"{_LAYER}.self_attn.kv_b_proj.weight": [192, 32],
        f"{_LAYER}.self_attn.o_proj.weight": [64, 64],
        f"{_LAYER}.post_attention_layernorm.weight": [64],
        f"{_LAYER}.mlp.up_proj.weight": [160, 64],
        f"{_LAYER}.mlp.down_proj.weight": [64, 160],
        "model.norm.weight": [64],
    },
}
