"""Variants of Jina Embeddings 3: of transformers, and with the adapters of tasks."""

from __future__ import annotations

from typing import Any

NAME = "jina-bert-v3"
_JINA: dict[str, Any] = {
    "architectures": ["JinaEmbeddingsV3Model"],
    "model_type": "jina_embeddings_v3",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 258,
    "vocab_size": 512,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "type_vocab_size": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
_TASKS = {"retrieval.query": "Represent the query: ", "text-matching": ""}
_ADAPTERS: dict[str, Any] = {
    **{k: x for k, x in _JINA.items() if k != "rope_parameters"},
    "architectures": ["XLMRobertaModel"],
    "model_type": "xlm-roberta",
    "position_embedding_type": "rotary",
    "rotary_emb_base": 20000.0,
    "lora_adaptations": [*_TASKS],
    "task_instructions": _TASKS,
    "lora_alpha": 1,
    "lora_rank": 4,
}
VARIANTS = {"jina-bert-v3": _JINA, "jina-bert-v3_adapters": _ADAPTERS}
_MATRICES = {  # rows, columns
    "embeddings.word_embeddings": (512, 64),
    "embeddings.token_type_embeddings": (1, 64),
    "encoder.layers.{i}.mixer.Wqkv": (192, 64),
    "encoder.layers.{i}.mixer.out_proj": (64, 64),
    "encoder.layers.{i}.mlp.fc1": (160, 64),
    "encoder.layers.{i}.mlp.fc2": (64, 160),
    "pooler.dense": (64, 64),
}


def _shapes() -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, (n_rows, n_columns) in _MATRICES.items():
        prefix = f"roberta.{name}.parametrizations.weight"
        embeds = name.startswith("embeddings.")  # whose change is A B, else B A
        found[f"{prefix}.original"] = [n_rows, n_columns]
        found[f"{prefix}.0.lora_A"] = [2, n_rows, 4] if embeds else [2, 4, n_columns]
        found[f"{prefix}.0.lora_B"] = [2, 4, n_columns] if embeds else [2, n_rows, 4]
        if not embeds:
            found[f"roberta.{name}.bias"] = [n_rows]
    for norm in ("emb_ln", "encoder.layers.{i}.norm1", "encoder.layers.{i}.norm2"):
        found |= {f"roberta.{norm}.weight": [64], f"roberta.{norm}.bias": [64]}
    return found


SHAPES = {"jina-bert-v3_adapters": _shapes()}
LLAMA_CPP = ("jina-bert-v3", "jina-bert-v3_adapters")
