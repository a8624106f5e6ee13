"""Tiny checkpoints of ``mistral3``."""

from __future__ import annotations

_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}
VARIANTS = {
    "mistral3": {
        "architectures": ["Ministral3ForCausalLM"],
        "model_type": "ministral3",
        **_TEXT,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16,
            "max_position_embeddings": 256,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "mistral3_vision": {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "text_config": {"model_type": "mistral", **_TEXT, "rope_theta": 1000000.0},
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 8,
        },
    },
}

LLAMA_CPP = ("mistral3", "mistral3_vision")
