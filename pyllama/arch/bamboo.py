"""Bamboo: Mistral with ReLU on both gate and up, whose products are mostly zero.
Source: PowerInfer, ``build_bamboo``; Song et al. 2024, "Turbo Sparse".
"""

from __future__ import annotations

from dataclasses import replace

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from . import llama

HPARAMS = llama.HPARAMS
TENSORS = llama.TENSORS


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    return llama.decoder(b, "relu", up_act="relu")


CONVERT = replace(llama.CONVERT, models=("BambooForCausalLM",), relu=True)
