"""Variants of EuroBERT."""

from __future__ import annotations

from typing import Any

_EURO: dict[str, Any] = {
    "architectures": ["EuroBertModel"],
    "model_type": "eurobert",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "vocab_size": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 250000.0},
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
VARIANTS = {
    "eurobert": _EURO,
    "eurobert_masked_lm": {
        **_EURO, "architectures": ["EuroBertForMaskedLM"], "num_key_value_heads": 4,
    },
    **{
        f"eurobert_{pooling}": {
            **_EURO, "architectures": ["EuroBertForSequenceClassification"],
            "classifier_pooling": pooling, "id2label": {"0": "no", "1": "maybe", "2": "yes"},
            "label2id": {"no": 0, "maybe": 1, "yes": 2},
        }
        for pooling in ("late", "mean", "bos")
    },
    "eurobert_scaled": {  # llama.cpp's converter takes no scaling of rope, and no biases
        **_EURO, "architectures": ["EuroBertForSequenceClassification"], "mlp_bias": True,
        "attention_bias": True, "id2label": {"0": "score"}, "label2id": {"score": 0},
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
        },
    },
}  # fmt: skip
LLAMA_CPP = ("eurobert", "eurobert_masked_lm")
