"""Variants of BERT, RoBERTa, XLM-RoBERTa and DistilBERT."""

from __future__ import annotations

from typing import Any

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
}
_BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    **_SIZES,
}
_ROBERTA: dict[str, Any] = {
    "architectures": ["RobertaModel"],
    "model_type": "roberta",
    "max_position_embeddings": 258,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    **_SIZES,
    "type_vocab_size": 1,
}
_XLM = {**_ROBERTA, "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta"}
_DISTILBERT: dict[str, Any] = {
    "architectures": ["DistilBertModel"],
    "model_type": "distilbert",
    "dim": 64,
    "hidden_dim": 160,
    "n_layers": 3,
    "n_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "activation": "gelu",
    "pad_token_id": 0,
}
_SCORE = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
_LABELS = {
    "id2label": {"0": "no", "1": "maybe", "2": "yes"},
    "label2id": {"no": 0, "maybe": 1, "yes": 2},
}

VARIANTS = {
    "bert": _BERT,
    "bert_relu": {**_BERT, "hidden_act": "relu", "layer_norm_eps": 1e-5},
    "bert_cross_encoder": {**_BERT, "architectures": ["BertForSequenceClassification"], **_SCORE},
    "bert_roberta": _ROBERTA,
    "bert_roberta_labels": {
        **_ROBERTA, "architectures": ["RobertaForSequenceClassification"], **_LABELS,
    },
    "bert_xlm_roberta": _XLM,
    "bert_xlm_roberta_reranker": {
        **_XLM, "architectures": ["XLMRobertaForSequenceClassification"], **_SCORE,
    },
    "bert_distilbert": _DISTILBERT,
    "bert_distilbert_labels": {
        **_DISTILBERT, "architectures": ["DistilBertForSequenceClassification"], **_LABELS,
    },
}  # fmt: skip


def _modules(pooling: str) -> dict[str, Any]:
    return {
        "modules.json": [
            {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ],
        "1_Pooling/config.json": {f"pooling_mode_{pooling}": True},
    }


FILES = {
    "bert": _modules("mean_tokens"),
    "bert_relu": _modules("cls_token"),
    "bert_roberta": _modules("mean_tokens"),
    "bert_xlm_roberta": _modules("cls_token"),
}
DIFFERENT = {  # llama.cpp's converter leaves out the pooler, which these classifiers use
    "bert_cross_encoder": ("cls.weight", "cls.bias"),
}
LLAMA_CPP = ("bert", "bert_roberta", "bert_xlm_roberta", "bert_distilbert")
