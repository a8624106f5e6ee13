"""Tiny checkpoints of ``falcon-h1``."""

from __future__ import annotations

from typing import Any

NAME = "falcon-h1"

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_BASE: dict[str, Any] = {
    "architectures": ["FalconH1ForCausalLM"],
    "model_type": "falcon_h1",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "mamba_d_ssm": 96,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 32,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
    "mamba_conv_bias": True,
    "mamba_rms_norm": False,
    "mamba_norm_before_gate": False,
    "embedding_multiplier": 1.5,
    "lm_head_multiplier": 0.75,
    "key_multiplier": 0.6,
    "attention_in_multiplier": 1.25,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.1,
    "ssm_out_multiplier": 0.8,
    "mlp_multipliers": [0.9, 0.7],
    "ssm_multipliers": [0.5, 0.9, 0.6, 0.8, 1.2],
    "tie_word_embeddings": False,
}
VARIANTS = {
    "falcon_h1": _BASE,
    "falcon_h1_norm": {
        **_BASE,
        "mamba_rms_norm": True,
        "mamba_n_groups": 2,
        "tie_word_embeddings": True,
    },
    "falcon_h1_biases": {  # llama.cpp's converter does not take them
        **_BASE,
        "mamba_conv_bias": False,
        "mamba_proj_bias": True,
        "projectors_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "falcon_h1_llama3": {  # llama.cpp's converter takes no scaling of rope
        **_BASE,
        "rope_scaling": {**LLAMA3},
        "time_step_limit": [0.04, 0.1],
    },
}

LLAMA_CPP = ("falcon_h1",)

# tied embeddings have a multiplier as embeddings and another one as the output matrix
DIFFERENT = {"falcon_h1_norm": ("output.weight",), "falcon_h1_llama3": ("rope_freqs.weight",)}
