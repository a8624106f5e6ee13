"""Tiny checkpoints of ``glm4``."""

from __future__ import annotations

_BASE = {
    "architectures": ["Glm4ForCausalLM"],
    "model_type": "glm4",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "head_dim": 32,
    "rms_norm_eps": 1.5625e-07,
    "attention_bias": True,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
}
_TEXT = {k: x for k, x in _BASE.items() if k not in ("architectures", "model_type")}
_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 64,
}
VARIANTS = {
    "glm4": _BASE,
    "glm4_relu2": {**_BASE, "hidden_act": "relu2"},
    "glm4_no_biases": {**_BASE, "attention_bias": False, "head_dim": 16},
    "glm4_1v": {
        "architectures": ["Glm4vForConditionalGeneration"],
        "model_type": "glm4v",
        "text_config": {
            **{k: x for k, x in _TEXT.items() if k != "head_dim"},
            "model_type": "glm4v_text",
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [1, 1, 2],
            },
        },
        "vision_config": _VISION,
    },
    "glm4_ocr": {
        "architectures": ["GlmOcrForConditionalGeneration"],
        "model_type": "glm_ocr",
        "text_config": {
            **_TEXT,
            "model_type": "glm_ocr_text",
            "attention_bias": False,
            "num_nextn_predict_layers": 0,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 1.0,
                "mrope_section": [4, 6, 6],
            },
        },
        "vision_config": _VISION,
    },
}

LLAMA_CPP = ("glm4", "glm4_1v", "glm4_ocr")
DIFFERENT = {"glm4_ocr": ("nextn_predict_layers",)}  # 0, which is the default
