"""Tiny checkpoints of ``gemma2``."""

from __future__ import annotations

_BASE = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "sliding_window": 16,
    "query_pre_attn_scalar": 32,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 5.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
VARIANTS = {
    "gemma2": _BASE,
    "gemma2_layers": {
        **_BASE,
        "layer_types": [
            "full_attention",
            "sliding_attention",
            "sliding_attention",
            "full_attention",
        ],
    },
    "gemma2_scalar": {**_BASE, "query_pre_attn_scalar": 20},
}

LLAMA_CPP = ("gemma2",)
