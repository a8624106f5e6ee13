"""Tiny checkpoints of ``muse-glimmer``."""

from __future__ import annotations

NAME = "muse-glimmer"

_SLIDING, _FULL = "sliding_attention", "full_attention"
VARIANTS = {
    "muse_glimmer": {
        "architectures": ["MuseGlimmerForConditionalGeneration"],
        "model_type": "muse_glimmer",
        "text_config": {
            "model_type": "muse_glimmer_text",
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 256,
            "vocab_size": 512,
            "rms_norm_eps": 1e-5,
            "post_norm_eps": 1e-8,
            "sliding_window": 16,
            "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING],
            "layer_rope_theta": [500000.0, 500000.0, 0, 500000.0],
            "qk_scale_factor": 3.87,
            "output_multiplier": 0.5,
            "final_logit_softcapping": 20.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        },
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "patch_size": 4,
            "pos_emb_height": 4,
            "pos_emb_width": 4,
            "max_position_embeddings": 16,
        },
        "out_hidden_size": 64,
        "projector_hidden_size": 16,
    },
}

LLAMA_CPP = ("muse_glimmer",)
