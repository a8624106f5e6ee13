"""Tiny checkpoints of ``qwen4exp``: with embeddings of n-grams and without."""

from __future__ import annotations

from typing import Any

from . import qwen3next

_BASE: dict[str, Any] = {
    **qwen3next.MIXERS,
    **qwen3next.EXPERTS,
    "architectures": ["Qwen4ExpForCausalLM"],
    "model_type": "qwen4_exp_text",
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
        "mrope_section": [4, 2, 2], "mrope_interleaved": True,
    },
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "hidden_act": "silu",
    "output_gate_type": "sigmoid",
    "hc_count": 4,
    "hc_lowrank": 32,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 32,
    "indexer_budget": 64,
    "indexer_compress_ratio": 8,
    "ple_layer_ids": [1],
    "ple_embed_dim": 64,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 100,
    "make_ngram_vocab_size_divisible_by": 16,
    "split_ngram_parts": 5,  # the last one is shorter
    "eos_token_id": 7,
}  # fmt: skip
VARIANTS = {
    "qwen4exp": _BASE,
    "qwen4exp_chosen": {**_BASE, "indexer_budget": 16, "ple_layer_ids": []},
    "qwen4exp_tied": {
        **_BASE, "ple_layer_ids": [], "hc_count": 2, "tie_word_embeddings": True,
    },
}  # fmt: skip

LLAMA_CPP = ("qwen4exp", "qwen4exp_chosen", "qwen4exp_tied")
# llama.cpp's converter looks for ``full_attention``, which transformers' configurations rename
DIFFERENT = dict.fromkeys(VARIANTS, ("attention.compress_ratios",))
