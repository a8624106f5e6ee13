"""EmbeddingGemma: Gemma 3 without causality, windows on both sides, dense layers after the pooling.

Source: Google 2025, "EmbeddingGemma: Powerful and Lightweight Text Representations"; llama.cpp,
``llama_model_gemma_embedding``.
"""

from __future__ import annotations

from typing import Any

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..hparams import Values
from ..mapping.rules import Config, Convert, check_config
from . import gemma3

NAME = "gemma-embedding"
HPARAMS: Values = {**gemma3.HPARAMS, "encoder": True, "causal": False, "swa_symmetric": True}

TENSORS = {name: ne for name, ne in gemma3.TENSORS.items() if not name.startswith("output.")}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the embeddings [n_embd, n_embeddings]."""
    return gemma3.decoder(b, "gelu")


def _keys(config: Config) -> dict[str, Any]:
    check_config(config, use_bidirectional_attention=True, final_logit_softcapping=0)
    return gemma3.keys(config)


CONVERT = Convert(
    models=("Gemma3TextModel",),
    tensors=gemma3.NAMES,
    defaults=gemma3.DEFAULTS,
    keys=_keys,
    change=gemma3.add_one,
    ignored=("lm_head.weight",),
    prefix="model.",
)
