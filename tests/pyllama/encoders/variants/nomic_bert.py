"""Variants of Nomic BERT: configurations of its own code and of transformers in one."""

from __future__ import annotations

from typing import Any

NAME = "nomic-bert"
_NOMIC: dict[str, Any] = {
    "architectures": ["NomicBertModel"],
    "model_type": "nomic_bert",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    "vocab_size": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 64,
    "n_head": 4,
    "n_inner": 160,
    "n_layer": 3,
    "n_positions": 2048,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
}
VARIANTS = {
    "nomic-bert": _NOMIC,
    "nomic-bert_reranker": {
        **_NOMIC,
        "architectures": ["NomicBertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
    },
}
FILES = {
    "nomic-bert": {
        "modules.json": [
            {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ],
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
    }
}
LLAMA_CPP = ("nomic-bert",)
