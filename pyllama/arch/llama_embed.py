"""Llama-Embed-Nemotron: LLaMA without causality.

Source: Babakhin et al. 2025, "Llama-Embed-Nemotron-8B: A Universal Text Embedding Model";
llama.cpp, ``llama_model_llama_embed``.
"""

from __future__ import annotations

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..hparams import Values
from ..mapping.rules import Convert
from . import llama

NAME = "llama-embed"
HPARAMS: Values = {**llama.HPARAMS, "encoder": True, "causal": False}

TENSORS = {name: ne for name, ne in llama.TENSORS.items() if not name.startswith("output.")}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the embeddings [n_embd, n_embeddings]."""
    return llama.decoder(b, "silu")


CONVERT = Convert(
    models=("LlamaBidirectionalModel",),
    tensors=llama.CONVERT.tensors,
    keys=lambda config: llama.keys(config) | {"attention.causal": False},
    change=llama.change,
    ignored=(*llama.CONVERT.ignored, "lm_head.weight"),
    prefix="model.",
)
