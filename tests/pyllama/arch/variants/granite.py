"""Tiny checkpoints of ``granite``."""

from __future__ import annotations

_BASE = {
    "architectures": ["GraniteForCausalLM"],
    "model_type": "granite",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0883883,
    "logits_scaling": 8.0,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
VARIANTS = {
    "granite": _BASE,
    "granite_biases": {
        **_BASE,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
        "embedding_multiplier": 1.0,
    },
    "granite_4": {  # without recurrent layers
        **_BASE,
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "intermediate_size": 96,
        "shared_intermediate_size": 96,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "layer_types": ["attention"] * 3,
        "position_embedding_type": "rope",
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_n_groups": 1,
        "mamba_d_state": 32,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "tie_word_embeddings": False,
    },
}

LLAMA_CPP = ("granite", "granite_4")

# of Mamba 2, which it does not have
DIFFERENT = {
    "granite_4": (
        *(f"ssm.{name}" for name in ("conv_kernel", "state_size", "group_count", "inner_size")),
        "ssm.time_step_rank",
        "expert_shared_feed_forward_length",
        "rope.scaling.finetuned",
    )
}
