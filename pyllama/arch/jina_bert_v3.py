"""Jina Embeddings 3: XLM-RoBERTa with rope, without the adapters of its tasks.

Source: Sturua et al. 2024, "jina-embeddings-v3: Multilingual Embeddings With Task LoRA"; llama.cpp,
``llama_model_jina_bert_v3``.
"""

from __future__ import annotations

from ..graph.tensors import ENCODER, tensors
from ..mapping.encoders import (
    HEADS,
    NOT_OF_ENCODERS,
    classifier_keys,
    with_prefixes,
    without_pooler,
)
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config, hidden_act
from . import bert, nomic_bert

NAME = "jina-bert-v3"
HPARAMS = nomic_bert.HPARAMS

TENSORS = tensors(ENCODER)

build_graph = bert.build_graph


def _keys(config: Config) -> Keys:
    check_config(config, position_embedding_type="rotary", rotary_emb_fraction=1.0)
    check_config(config, rotary_emb_interleaved=False)
    keys = {"attention.causal": False, **base_keys(config), **classifier_keys(config)}
    keys |= hidden_act(config, "gelu_erf")
    if config.get("pad_token_id") is not None:  # as of XLM-RoBERTa's learned positions
        keys["context_length"] -= int(config["pad_token_id"]) + 1
    return keys


_LAYER = "encoder.layers.{i}"
_WEIGHTS = {  # by the module that has the weight, and an adapter's of each task
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    f"{_LAYER}.mixer.Wqkv": "blk.{i}.attn_qkv",
    f"{_LAYER}.mixer.out_proj": "blk.{i}.attn_output",
    f"{_LAYER}.mlp.fc1": "blk.{i}.ffn_up",
    f"{_LAYER}.mlp.fc2": "blk.{i}.ffn_down",
}

CONVERT = Convert(
    models=(
        "XLMRobertaModel",
        "JinaEmbeddingsV3Model",
        "JinaEmbeddingsV3ForMaskedLM",
        "JinaEmbeddingsV3ForSequenceClassification",
    ),
    accepts=lambda config: (
        bool(config.get("lora_adaptations")) or config.get("model_type") == "jina_embeddings_v3"
    ),
    tensors=with_prefixes(
        {
            **{f"{theirs}.*": f"{ours}.*" for theirs, ours in _WEIGHTS.items()},
            **{
                f"{theirs}.parametrizations.weight.original": f"{ours}.weight"
                for theirs, ours in _WEIGHTS.items()
            },
            "emb_ln.*": "token_embd_norm.*",
            f"{_LAYER}.norm1.*": "blk.{i}.attn_output_norm.*",
            f"{_LAYER}.norm2.*": "blk.{i}.layer_output_norm.*",
            **HEADS,
        },
        "roberta.",
    ),
    keys=_keys,
    change=without_pooler,
    defaults={"rotary_emb_base": 20000.0},
    ignored=(*NOT_OF_ENCODERS, "*.lora_A", "*.lora_B", "*pooler.dense.parametrizations.*"),
)
