"""Tiny checkpoints of ``nemotron_h``."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "layer_norm_epsilon": 1e-5,
    "mlp_hidden_act": "relu2",
    "mamba_hidden_act": "silu",
    "mamba_num_heads": 12,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 32,
    "conv_kernel": 4,
    "expand": 2,
    "chunk_size": 16,
    "time_step_min": 1e-9,  # transformers clamps time steps from below, llama.cpp does not
    "use_conv_bias": True,
    "tie_word_embeddings": False,
}
VARIANTS = {
    "nemotron_h": {**BASE, "num_hidden_layers": 5, "hybrid_override_pattern": "M-M*-"},
    "nemotron_h_biases": {
        **BASE,
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "full_attention", "mlp", "linear_attention"],
        "use_bias": True,
        "mlp_bias": True,
        "attention_bias": True,
        "use_conv_bias": False,
    },
    "nemotron_h_saved": {  # by transformers, which ties nothing and writes numbers of experts
        **BASE,
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "mlp", "full_attention"],
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": True,
    },
}

LLAMA_CPP = ("nemotron_h",)

# llama.cpp's converter takes any file that transformers knows for one with experts
_OF_EXPERTS = (
    "architecture",
    "feed_forward_length",
    *(f"expert_{name}count" for name in ("", "used_", "group_", "group_used_", "shared_")),
    *(f"expert_{name}feed_forward_length" for name in ("", "shared_")),
    "expert_weights_norm",
    "expert_weights_scale",
)
DIFFERENT = dict.fromkeys(VARIANTS, _OF_EXPERTS)
