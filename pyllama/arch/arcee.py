"""Arcee (AFM): LLaMA without gates, squared ReLU.

Source: Arcee AI 2025, "AFM-4.5B"; llama.cpp, ``llm_build_arcee``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.tensors import without
from ..hparams import Key, Values
from ..mapping.rules import Config
from . import llama

HPARAMS: Values = {"attn_scale": Key("attention.scale", 0.0)}
TENSORS = without(llama.TENSORS, "ffn_gate", "_exps")


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    return llama.decoder(b, "relu_sqr")


def _keys(config: Config) -> dict[str, Any]:
    return llama.keys(config, "relu_sqr")


CONVERT = replace(llama.CONVERT, models=("ArceeForCausalLM",), keys=_keys)
