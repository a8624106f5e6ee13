"""Tiny checkpoints of ``plamo2``."""

from __future__ import annotations

VARIANTS = {
    "plamo2": {
        "architectures": ["Plamo2ForCausalLM"],
        "model_type": "plamo2",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size_per_head": 32,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-6,
        "mamba_step": 2,
        "mamba_enabled": True,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_num_heads": 4,
        "tie_word_embeddings": True,
    }
}

LLAMA_CPP = ("plamo2",)
UNUSABLE = ("plamo2",)  # llama.cpp hangs in rope if the first layer has 0 heads of queries
DIFFERENT = {"plamo2": ("attention.head_count",)}

_LAYER = "model.layers.layers.{i}"
_MAMBA = {
    "in_proj.weight": [256, 64],
    "conv1d.weight": [128, 1, 4],
    "bcdt_proj.weight": [96, 128],
    "dt_proj.weight": [4, 64],
    "dt_bias": [4],
    "A_log": [4],
    "D": [4],
    "dt_norm_weight": [64],
    "B_norm_weight": [16],
    "C_norm_weight": [16],
    "out_proj.weight": [64, 128],
}
_ATTENTION = {
    "qkv_proj.weight": [256, 64],
    "q_weight": [4, 32],
    "k_weight": [2, 32],
    "o_proj.weight": [64, 128],
}
SHAPES = {
    "plamo2": {
        "model.embed_tokens.weight": [512, 64],
        **{
            f"model.layers.layers.{i}.mixer.{name}": shape
            for i in range(4)
            for name, shape in (_ATTENTION if i % 2 else _MAMBA).items()
        },
        f"{_LAYER}.pre_mixer_norm.weight": [64],
        f"{_LAYER}.post_mixer_norm.weight": [64],
        f"{_LAYER}.pre_mlp_norm.weight": [64],
        f"{_LAYER}.mlp.gate_up_proj.weight": [320, 64],
        f"{_LAYER}.mlp.down_proj.weight": [64, 160],
        f"{_LAYER}.post_mlp_norm.weight": [64],
        "model.norm.weight": [64],
    }
}
