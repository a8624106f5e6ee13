"""Qwen3: LLaMA's graph with norms of the queries and keys of each head.

Scores of rerankers are probabilities.
Source: Yang et al. 2025, "Qwen3 Technical Report"; llama.cpp, ``llm_build_qwen3``.
"""

from __future__ import annotations

import numpy as np

from ..graph.builder import HEAD
from ..hparams import POOLINGS, Values
from ..mapping.rules import OTHER_MEDIA, Array, Config, Convert, Keys, Tensors
from . import qwen2

HPARAMS: Values = {**qwen2.HPARAMS, "softmax_scores": True}

TENSORS = {
    **qwen2.TENSORS,
    "blk.{i}.attn_q_norm.weight": ("head_dim",),
    "blk.{i}.attn_k_norm.weight": ("head_dim",),
    "blk.{i}.attn_output.bias?": ("n_embd",),
}


build_graph = qwen2.build_graph

_RANKING = "Qwen3ForSequenceClassification"


def _keys(config: Config) -> Keys:
    keys = qwen2.keys(config)
    if _RANKING not in config["architectures"]:
        return keys
    names = config.get("id2label") or {str(i): "" for i in range(config.get("num_labels", 2))}
    labels = [str(names[key]) for key in sorted(names, key=int)]
    if len(labels) == 1:  # see _change
        labels = ["yes", "no"]
    return {**keys, "pooling_type": POOLINGS.index("rank"), "classifier.output_labels": labels}


def _change(name: str, x: Array, config: Config) -> Tensors:
    if name == HEAD and len(x) == 1:  # its sigmoid is the softmax of it and 0
        x = np.concatenate([x, np.zeros_like(x)])
    return {name: x}


CONVERT = Convert(
    models=("Qwen3ForCausalLM", "Qwen3Model", "StepVLForConditionalGeneration", _RANKING),
    tensors={
        **qwen2.CONVERT.tensors,
        "model.layers.{i}.self_attn.o_proj.*": "blk.{i}.attn_output.*",
        "model.layers.{i}.self_attn.q_norm.weight": "blk.{i}.attn_q_norm.weight",
        "model.layers.{i}.self_attn.k_norm.weight": "blk.{i}.attn_k_norm.weight",
        "score.weight": HEAD,
    },
    other_media=(*OTHER_MEDIA, "vit_*"),
    defaults={"head_dim": 128, "rms_norm_eps": 1e-6},
    keys=_keys,
    change=_change,
    prefix="model.",
)
