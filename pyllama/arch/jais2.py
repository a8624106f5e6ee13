"""Jais 2: StarCoder2's layers with squared ReLU.

Source: Jais 2 Team 2025, "Jais 2"; llama.cpp, ``llm_build_jais2``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.decoder import layer_norm_decoder
from ..mapping.rules import Config
from . import llama, starcoder2

HPARAMS = starcoder2.HPARAMS
TENSORS = starcoder2.TENSORS


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    return layer_norm_decoder(b, b.embed("token_embd.weight"), "relu_sqr")


def _keys(config: Config) -> dict[str, Any]:
    return llama.keys(config, "relu_sqr")


CONVERT = replace(
    starcoder2.CONVERT,
    models=("Jais2ForCausalLM",),
    tensors={
        name.replace("c_fc", "up_proj").replace("c_proj", "down_proj"): x
        for name, x in starcoder2.CONVERT.tensors.items()
    },
    keys=_keys,
)
