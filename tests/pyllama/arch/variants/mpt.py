"""Tiny checkpoints of ``mpt``."""

from __future__ import annotations

VARIANTS = {
    "mpt": {
        "architectures": ["MptForCausalLM"],
        "model_type": "mpt",
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 3,
        "max_seq_len": 256,
        "vocab_size": 512,
        "attn_config": {"clip_qkv": 0.7},
    },
}
VARIANTS["mpt_6_heads"] = VARIANTS["mpt"] | {
    "d_model": 96,
    "n_heads": 6,
    "attn_config": {"softmax_scale": 0.5},
}

LLAMA_CPP = ("mpt",)
