"""Arcee (AFM): LLaMA without gates, squared ReLU.

Source: Arcee AI 2025, "AFM-4.5B"; llama.cpp, ``llm_build_arcee``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..graph.tensors import without
from ..hparams import Key, Values
from . import llama

HPARAMS: Values = {"attn_scale": Key("attention.scale", 0.0)}
TENSORS = without(llama.TENSORS, "ffn_gate", "_exps")

build_graph = partial(llama.decoder, act="relu_sqr")


CONVERT = replace(
    llama.CONVERT, models=("ArceeForCausalLM",), keys=partial(llama.keys, act="relu_sqr")
)
