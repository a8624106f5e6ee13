"""EuroBERT: LLaMA's graph with rope on halves, whose tokens attend to all of their text.

Source: Boizard et al. 2025, "EuroBERT: Scaling Multilingual Encoders for European Languages";
llama.cpp, ``llama_model_eurobert``.
"""

from __future__ import annotations

from ..graph.builder import ROPE_FACTORS
from ..graph.tensors import QKV, tensors
from ..hparams import Key, Values
from ..mapping.encoders import NOT_OF_ENCODERS, classifier_keys, is_classifier
from ..mapping.rules import Config, Convert, Keys
from . import llama

HPARAMS: Values = {
    "encoder": True,
    "rope_neox": True,
    "head_act": Key("classifier.activation", "gelu_erf"),
}

TENSORS = tensors(
    {
        "token_embd.weight": ("n_embd", "n_vocab"),
        "blk.{i}.attn_norm.weight": ("n_embd",),
        **QKV,
        "blk.{i}.attn_output.*?": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.weight": ("n_embd",),
        "blk.{i}.ffn_gate.*?": ("n_embd", "n_ff"),
        "blk.{i}.ffn_up.*?": ("n_embd", "n_ff"),
        "blk.{i}.ffn_down.*?": ("n_ff", "n_embd"),
        **ROPE_FACTORS,
        "output_norm.weight": ("n_embd",),
    }
)

build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    keys = {"rope.scaling.type": "none", **llama.keys(config), "attention.causal": False}
    if not is_classifier(config):
        return keys
    pooling = _POOLINGS.index(str(config.get("classifier_pooling") or "late"))
    return keys | classifier_keys(config) | {"classifier.pooling_type": pooling}


_POOLINGS = ("late", "mean", "bos")  # in the order of ``POOLINGS``


CONVERT = Convert(
    models=(
        "EuroBertModel", "EuroBertForMaskedLM", "EuroBertForSequenceClassification",
        "JinaEmbeddingsV5Model",
    ),
    tensors={
        **llama.CONVERT.tensors,
        "dense.*": "cls.*",
        "classifier.*": "cls.output.*",
    },
    keys=_keys,
    ignored=NOT_OF_ENCODERS,
    prefix="model.",
)  # fmt: skip
