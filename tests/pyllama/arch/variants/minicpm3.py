"""Tiny checkpoints of ``minicpm3``."""

from __future__ import annotations

_BASE = {
    "architectures": ["MiniCPM3ForCausalLM"],
    "model_type": "minicpm3",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 256,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
VARIANTS = {
    "minicpm3": _BASE,
    "minicpm3_longrope": {
        **_BASE,
        "v_head_dim": 24,
        "scale_emb": 4,
        "scale_depth": 2.0,
        "dim_model_base": 32,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0,
            "original_max_position_embeddings": 256,
            "short_factor": [1 + i / 10 for i in range(8)],
            "long_factor": [2 + i / 2 for i in range(8)],
        },
    },
}  # fmt: skip

LLAMA_CPP = ("minicpm3",)
