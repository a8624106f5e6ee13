"""Tiny checkpoints of ``cogvlm``."""

from __future__ import annotations

VARIANTS = {
    "cogvlm": {
        "architectures": ["CogVLMForCausalLM"],
        "model_type": "cogvlm",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-5,
    },
}

LLAMA_CPP = ("cogvlm",)
# llama.cpp's converter leaves out the matrices for images, without which it does not load a file
_VISION = ("attn_qkv", "attn_output", "gate", "up", "down")
DIFFERENT = {"cogvlm": tuple(f"blk.{i}.vis_{part}.weight" for i in range(3) for part in _VISION)}

_LAYER = "model.layers.{i}"
SHAPES = {
    "cogvlm": {
        "model.embed_tokens.weight": [512, 64],
        f"{_LAYER}.input_layernorm.weight": [64],
        f"{_LAYER}.post_attention_layernorm.weight": [64],
        **{
            f"{_LAYER}.{name}.weight": shape
            for kind in ("language", "vision")
            for name, shape in (
                (f"self_attn.{kind}_expert_query_key_value", [192, 64]),
                (f"self_attn.{kind}_expert_dense", [64, 64]),
                (f"mlp.{kind}_mlp.gate_proj", [160, 64]),
                (f"mlp.{kind}_mlp.up_proj", [160, 64]),
                (f"mlp.{kind}_mlp.down_proj", [64, 160]),
            )
        },
        "model.norm.weight": [64],
        "lm_head.weight": [512, 64],
    },
}
