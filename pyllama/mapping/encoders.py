"""What the checkpoints of encoders share: names with prefixes, heads of classifiers, positions.

    tensors = with_prefixes({"embeddings.word_embeddings.weight": "token_embd.weight"}, "bert.")
    keys |= classifier_keys(config)                # {} if the model has no classifier

Declarations and pure functions, as ``rules``.
Source: llama.cpp, ``conversion/bert.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..hparams import POOLINGS
from .rules import Array, Config, Tensors

HEADS = {  # of classifiers; the names in BERT, RoBERTa and DistilBERT
    "pooler.dense.*": "cls.*",
    "classifier.*": "cls.output.*",
    "classifier.dense.*": "cls.*",
    "classifier.out_proj.*": "cls.output.*",
    "pre_classifier.*": "cls.*",
}
NOT_OF_ENCODERS = (  # heads of pre-training, and positions that are numbers
    "*embeddings.position_ids", "*embeddings.token_type_ids", "cls.predictions.*",
    "cls.seq_relationship.*", "lm_head.*", "vocab_*", "*.rotary_emb.inv_freq",
)  # fmt: skip


def with_prefixes(names: Mapping[str, str], *prefixes: str) -> dict[str, str]:
    """Checkpoint name -> GGUF name, also with each prefix, as a model with a head has them.

    Norms of old checkpoints have ``gamma`` and ``beta``.
    """
    found = dict(names)
    for theirs, ours in names.items():
        if theirs.endswith("LayerNorm.*"):
            for old, end in (("gamma", "weight"), ("beta", "bias")):
                found[theirs.replace("*", old)] = ours.replace("*", end)
    return found | {f"{p}{theirs}": ours for p in prefixes for theirs, ours in found.items()}


def is_classifier(config: Config) -> bool:
    """Whether the checkpoint is a classifier of texts or of pairs of texts (a cross-encoder)."""
    return str(config["architectures"][0]).endswith("ForSequenceClassification")


def without_pooler(name: str, x: Array, config: Config) -> Tensors:
    """The tensor, but of the pooler only if a classifier uses it; embeddings do not."""
    return {} if name.startswith("cls.") and not is_classifier(config) else {name: x}


def classifier_keys(config: Config) -> dict[str, Any]:
    """The labels of a classifier, and the pooling that gives its scores; {} of other models."""
    if not is_classifier(config):
        return {}
    labels = config.get("id2label")
    if not isinstance(labels, Mapping) or not labels:
        labels = {str(i): f"LABEL_{i}" for i in range(int(config.get("num_labels") or 2))}
    named = [str(labels[key]) for key in sorted(labels, key=int)]
    return {"pooling_type": POOLINGS.index("rank"), "classifier.output_labels": named}
