"""Tiny checkpoints of ``granitehybrid``."""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 32,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
_GRANITE: dict[str, Any] = {
    **_BASE,
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "mamba_n_groups": 1,
    "layer_types": ["mamba", "attention", "mamba", "attention"],
    "position_embedding_type": "nope",
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0625,
    "logits_scaling": 6.0,
    "tie_word_embeddings": True,
}
VARIANTS = {
    "granitehybrid": {
        **_GRANITE,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "shared_intermediate_size": 128,
    },
    "granitehybrid_dense": {
        **_GRANITE,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 96,
        "mamba_n_groups": 2,
        "mamba_conv_bias": False,
        "tie_word_embeddings": False,
    },
    "bamba": {
        **_BASE,
        "architectures": ["BambaForCausalLM"],
        "model_type": "bamba",
        "mamba_n_groups": 2,
        "attn_layer_indices": [1, 2],
        "attn_rotary_emb": 8,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
    },
    "granitehybrid_attention": {  # in all layers, without positions
        **_GRANITE,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 96,
        "layer_types": ["attention"] * 4,
    },
    "bamba_recurrent": {  # all layers
        **_BASE,
        "architectures": ["BambaForCausalLM"],
        "model_type": "bamba",
        "mamba_n_groups": 2,
        "tie_word_embeddings": False,
    },
}

LLAMA_CPP = ("granitehybrid", "bamba")  # llama.cpp needs a bias of the convolution
# llama.cpp's converter takes such a model for one with rope
DIFFERENT = {
    "granitehybrid_attention": ("architecture", "context_length", "rope.scaling.finetuned")
}
