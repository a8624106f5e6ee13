"""Tiny checkpoints of ``hunyuan_vl``."""

from __future__ import annotations

VARIANTS = {
    "hunyuan_vl": {
        "architectures": ["HunYuanVLForConditionalGeneration"],
        "model_type": "hunyuan_vl",
        "text_config": {
            "model_type": "hunyuan_vl_text",
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 256,
            "vocab_size": 512,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 10000.0,
                "alpha": 1000.0,
                "factor": 1.0,
                "mrope_section": [4, 4, 4, 4],
            },
        },
        "tie_word_embeddings": True,
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "patch_size": 4,
            "out_hidden_size": 64,
            "text_hidden_size": 64,
            "max_image_size": 16,
        },
    },
}

LLAMA_CPP = ("hunyuan_vl",)
