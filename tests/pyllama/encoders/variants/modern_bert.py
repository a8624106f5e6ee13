"""Variants of ModernBERT."""

from __future__ import annotations

from typing import Any

NAME = "modern-bert"
_MODERN: dict[str, Any] = {
    "architectures": ["ModernBertModel"],
    "model_type": "modernbert",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "vocab_size": 512,
    "hidden_activation": "gelu",
    "norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "local_attention": 16,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "cls_token_id": 0,
    "eos_token_id": 2,
    "sep_token_id": 2,
}
_FULL, _SLIDING = "full_attention", "sliding_attention"
VARIANTS = {
    "modern-bert": _MODERN,
    "modern-bert_silu": {**_MODERN, "hidden_activation": "silu", "global_attn_every_n_layers": 2},
    "modern-bert_biases": {
        **_MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True,
        "layer_types": [_SLIDING, _FULL, _SLIDING, _SLIDING],
    },
    "modern-bert_reranker": {
        **_MODERN, "architectures": ["ModernBertForSequenceClassification"],
        "classifier_pooling": "mean", "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
    },
    "modern-bert_labels": {
        **_MODERN, "architectures": ["ModernBertForSequenceClassification"],
        "classifier_pooling": "cls", "classifier_bias": True, "norm_bias": True,
        "id2label": {"0": "no", "1": "maybe", "2": "yes"},
        "label2id": {"no": 0, "maybe": 1, "yes": 2},
    },
    "modern-bert_scaled": {
        **_MODERN, "architectures": ["ModernBertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 160000.0, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
}  # fmt: skip
FILES = {
    "modern-bert": {
        "modules.json": [
            {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ],
        "1_Pooling/config.json": {"pooling_mode_cls_token": True},
    }
}
DIFFERENT = {
    "modern-bert_biases": ("attention.sliding_window_pattern",),  # not by its layer_types
    "modern-bert_scaled": ("rope.scaling.type",),  # llama.cpp's converter writes "none"
}
LLAMA_CPP = ("modern-bert", "modern-bert_silu")
