"""Llama-Embed-Nemotron: LLaMA without causality.

Source: Babakhin et al. 2025, "Llama-Embed-Nemotron-8B: A Universal Text Embedding Model";
llama.cpp, ``llama_model_llama_embed``.
"""

from __future__ import annotations

from ..hparams import Values
from ..mapping.rules import Convert
from . import llama

NAME = "llama-embed"
HPARAMS: Values = {**llama.HPARAMS, "encoder": True, "causal": False}

TENSORS = {name: ne for name, ne in llama.TENSORS.items() if not name.startswith("output.")}

build_graph = llama.build_graph


CONVERT = Convert(
    models=("LlamaBidirectionalModel",),
    tensors=llama.CONVERT.tensors,
    keys=lambda config: llama.keys(config) | {"attention.causal": False},
    change=llama.change,
    ignored=(*llama.CONVERT.ignored, "lm_head.weight"),
    prefix="model.",
)
