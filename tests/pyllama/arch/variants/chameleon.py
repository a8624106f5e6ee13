"""Tiny checkpoints of ``chameleon``: of 7B and, with norms after the parts, of 34B.

Their vocabulary has no tokens of images: ``test_chameleon.py`` has one with these.
"""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "architectures": ["ChameleonForConditionalGeneration"],
    "model_type": "chameleon",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "vocabulary_map": {"<image>": 3},
    "vq_config": {
        "embed_dim": 8, "num_embeddings": 16, "latent_channels": 8, "resolution": 32,
        "base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1,
    },
}  # fmt: skip
VARIANTS = {
    "chameleon": BASE,
    "chameleon_swin": {**BASE, "swin_norm": True, "num_key_value_heads": 2},
}
LLAMA_CPP = ()
