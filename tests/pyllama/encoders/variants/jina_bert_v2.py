"""Variants of Jina Embeddings 2, which transformers lacks: of texts and of code."""

from __future__ import annotations

from typing import Any

NAME = "jina-bert-v2"
_JINA: dict[str, Any] = {
    "architectures": ["JinaBertForMaskedLM"],
    "model_type": "bert",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "vocab_size": 512,
    "hidden_act": "gelu",
    "feed_forward_type": "geglu",
    "position_embedding_type": "alibi",
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
VARIANTS = {
    "jina-bert-v2": _JINA,
    "jina-bert-v2_code": {**_JINA, "architectures": ["JinaBertModel"], "layer_norm_eps": 1e-5},
    "jina-bert-v2_labels": {
        **_JINA, "architectures": ["JinaBertForSequenceClassification"], "sep_token_id": 3,
        "id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1},
    },
}  # fmt: skip
_ENCODER = {
    "embeddings.word_embeddings.weight": [512, 64],
    "embeddings.token_type_embeddings.weight": [2, 64],
    "embeddings.LayerNorm.weight": [64],
    "embeddings.LayerNorm.bias": [64],
    **{
        f"encoder.layer.{{i}}.attention.{part}.{end}": shape
        for part in ("self.query", "self.key", "self.value", "output.dense")
        for end, shape in (("weight", [64, 64]), ("bias", [64]))
    },
    "encoder.layer.{i}.attention.output.LayerNorm.weight": [64],
    "encoder.layer.{i}.attention.output.LayerNorm.bias": [64],
    "pooler.dense.weight": [64, 64],
    "pooler.dense.bias": [64],
}
_NORMS = ("attention.self.layer_norm_q", "attention.self.layer_norm_k", "layer_norm_1",
          "layer_norm_2")  # fmt: skip
SHAPES = {
    "jina-bert-v2": {
        **_ENCODER,
        "encoder.layer.{i}.mlp.gated_layers.weight": [192, 64],
        "encoder.layer.{i}.mlp.wo.weight": [64, 96],
        "encoder.layer.{i}.mlp.wo.bias": [64],
        "encoder.layer.{i}.mlp.layernorm.weight": [64],
        "encoder.layer.{i}.mlp.layernorm.bias": [64],
    },
    "jina-bert-v2_code": {
        **_ENCODER,
        "encoder.layer.{i}.mlp.up_gated_layer.weight": [192, 64],
        "encoder.layer.{i}.mlp.down_layer.weight": [64, 96],
        "encoder.layer.{i}.mlp.down_layer.bias": [64],
        **{
            f"encoder.layer.{{i}}.{norm}.{end}": [64]
            for norm in _NORMS
            for end in ("weight", "bias")
        },
    },
}
SHAPES["jina-bert-v2_labels"] = {
    **{f"bert.{name}": shape for name, shape in SHAPES["jina-bert-v2"].items()},
    "classifier.weight": [2, 64],
    "classifier.bias": [2],
}
LLAMA_CPP = ("jina-bert-v2", "jina-bert-v2_code")
