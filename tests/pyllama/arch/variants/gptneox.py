"""Tiny checkpoints of ``gptneox``."""

from __future__ import annotations

_BASE = {
    "architectures": ["GPTNeoXForCausalLM"],
    "model_type": "gpt_neox",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "use_parallel_residual": True,
}
VARIANTS = {
    "gptneox": _BASE,
    "gptneox_sequential": {**_BASE, "use_parallel_residual": False, "rotary_pct": 1.0},
    "gptneox_llama3": {
        **_BASE,
        "rotary_emb_base": 500000,
        "rotary_pct": 0.5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "gptneox_no_biases": {**_BASE, "attention_bias": False, "hidden_act": "gelu_new"},
}

LLAMA_CPP = (
    "gptneox",
    "gptneox_sequential",
)
