"""Tiny checkpoints of ``llama``."""

from __future__ import annotations

from typing import Any

_BASE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_MISTRAL = {
    **_BASE,
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "sliding_window": None,
}
# Parameters without those of the feed-forward parts, for ``SHAPES`` of other architectures
ATTENTION = {
    "model.embed_tokens.weight": [512, 64],
    "model.layers.{i}.input_layernorm.weight": [64],
    "model.layers.{i}.self_attn.q_proj.weight": [64, 64],
    "model.layers.{i}.self_attn.k_proj.weight": [32, 64],
    "model.layers.{i}.self_attn.v_proj.weight": [32, 64],
    "model.layers.{i}.self_attn.o_proj.weight": [64, 64],
    "model.layers.{i}.post_attention_layernorm.weight": [64],
    "model.norm.weight": [64],
    "lm_head.weight": [512, 64],
}


def _scaled(**rope: Any) -> dict[str, Any]:
    return {**_BASE, "rope_parameters": {"rope_theta": 10000.0, **rope}}


VARIANTS = {
    "llama": _BASE,
    "llama_biases": {
        **_BASE,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "head_dim": 32,
    },
    "llama_relu": {**_BASE, "hidden_act": "relu", "num_key_value_heads": 4},
    "llama_relu2": {**_BASE, "hidden_act": "relu2"},
    "llama_linear": _scaled(rope_type="linear", factor=4.0),
    "llama_dynamic": _scaled(rope_type="dynamic", factor=2.0),
    "llama_llama3": _scaled(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    ),
    "llama_yarn": _scaled(rope_type="yarn", factor=8.0, original_max_position_embeddings=32),
    "llama_yarn_attention": _scaled(
        rope_type="yarn",
        factor=4.0,
        original_max_position_embeddings=64,
        attention_factor=0.7,
        beta_fast=4.0,
        beta_slow=0.5,
    ),
    "llama_longrope": _scaled(
        rope_type="longrope",
        factor=16.0,
        original_max_position_embeddings=16,
        long_factor=[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0],
        short_factor=[1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6],
    ),
    "llama_longrope_sizes": {
        **_scaled(
            rope_type="longrope",
            factor=4.0,
            original_max_position_embeddings=64,
            long_factor=[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0],
            short_factor=[1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6],
        ),
        "original_max_position_embeddings": 16,
    },
    "mistral": {**_MISTRAL, "sliding_window": 16},
    "mistral_defaults": {k: x for k, x in _MISTRAL.items() if k != "rms_norm_eps"},
    "mixtral": {
        **_MISTRAL,
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "mixtral_defaults": {
        **{k: x for k, x in _MISTRAL.items() if k != "rope_parameters"},
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 4,
    },
}

LLAMA_CPP = (
    "llama",
    "llama_biases",
    "llama_dynamic",
    "llama_linear",
    "llama_llama3",
    "llama_longrope",
    "llama_yarn",
    "llama_yarn_attention",
    "mixtral",
)

_FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")
DIFFERENT = {  # llama.cpp leaves them out
    "llama_yarn_attention": ("rope.scaling.yarn_attn_factor",),
    "llama_longrope": _FACTORS,
    "llama_longrope_sizes": _FACTORS,
}
