"""Granite: LLaMA's graph with factors on embeddings, residuals, scores and logits.

Source: IBM 2024, "Granite 3.0 Language Models"; llama.cpp, ``llm_build_granite``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..graph.tensors import EXPERTS, without
from ..hparams import Key, Values
from ..mapping.rules import Config, float32
from . import llama

HPARAMS: Values = {
    "embedding_scale": Key("embedding_scale", 1.0),
    "residual_scale": Key("residual_scale", 1.0),
    "attn_scale": Key("attention.scale", 0.0),
    "logit_divisor": Key("logit_scale", type=float),
    "logit_scale": lambda got: 1 / got["logit_divisor"] if got["logit_divisor"] else 0.0,
}

TENSORS = without(llama.TENSORS, *EXPERTS)

build_graph = llama.build_graph

SCALES = {  # llama.cpp's keys -> names in config.json
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}


def scale_keys(config: Config) -> dict[str, Any]:
    """The keys of the four factors, which are 1 where config.json lacks them."""
    return {key: float32(config.get(name, 1.0)) for key, name in SCALES.items()}


CONVERT = replace(
    llama.CONVERT,
    models=("GraniteForCausalLM",),
    keys=lambda config: llama.CONVERT.keys(config) | scale_keys(config),
)
