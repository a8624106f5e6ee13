"""Variants of T5 with its decoder: T5, FLAN-T5 with a gate and an output matrix, and UMT5."""

from __future__ import annotations

from .t5encoder import VARIANTS as _ENCODERS

_T5 = {**_ENCODERS["t5encoder"], "architectures": ["T5ForConditionalGeneration"]}
VARIANTS = {
    "t5": _T5,
    "t5_flan": {
        **_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "d_kv": 24,
        "num_heads": 3, "num_layers": 4,
    },
    "t5_umt5": {
        **_T5, "architectures": ["UMT5ForConditionalGeneration"], "model_type": "umt5",
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
    },
    "t5_deep_decoder": {**_T5, "num_decoder_layers": 4},  # llama.cpp neither converts nor runs it
}  # fmt: skip
GENERATING = ("t5", "t5_flan", "t5_umt5")
