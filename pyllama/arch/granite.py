"""Granite: LLaMA's graph with factors on embeddings, residuals, scores and logits.

Source: IBM 2024, "Granite 3.0 Language Models"; llama.cpp, ``llm_build_granite``.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.tensors import EXPERTS, without
from ..hparams import Key, Values
from ..mapping.rules import float32
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

SCALES = {  # llama.cpp's keys -> names in config.json, which may lack them: 1
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}


CONVERT = replace(
    llama.CONVERT,
    models=("GraniteForCausalLM",),
    keys=lambda config: (
        llama.CONVERT.keys(config)
        | {key: float32(config.get(name, 1.0)) for key, name in SCALES.items()}
    ),
)
