"""Tiny checkpoints of ``paddleocr``."""

from __future__ import annotations

VARIANTS = {
    "paddleocr": {
        "architectures": ["PaddleOCRVLForConditionalGeneration"],
        "model_type": "paddleocr_vl",
        "text_config": {
            "model_type": "paddleocr_vl_text",
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 256,
            "vocab_size": 512,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500000.0,
                "mrope_section": [4, 6, 6],
            },
        },
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 4,
        },
    },
}

LLAMA_CPP = ("paddleocr",)
