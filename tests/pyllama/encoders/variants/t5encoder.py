"""Variants of T5's encoder: T5, and T5 1.1 with a gate, as sentence-t5 has them."""

from __future__ import annotations

from typing import Any

from .gemma_embedding import modules

_T5: dict[str, Any] = {
    "architectures": ["T5EncoderModel"],
    "model_type": "t5",
    "d_model": 64,
    "d_ff": 160,
    "d_kv": 16,
    "num_layers": 3,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "vocab_size": 512,
    "n_positions": 512,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
VARIANTS = {
    "t5encoder": _T5,
    "t5encoder_gated": {
        **_T5, "feed_forward_proj": "gated-gelu", "d_kv": 24, "relative_attention_num_buckets": 12,
        "num_heads": 3,
    },
}  # fmt: skip
FILES = {"t5encoder_gated": modules((64, 48, False))}
DIFFERENT = {  # llama.cpp's converter knows those of EmbeddingGemma only
    "t5encoder_gated": ("dense_2.weight",),
}
LLAMA_CPP = ("t5encoder",)
