"""Jais 2: Nemotron's graph with rope on whole heads.

Source: Jais 2 Team 2025, "Jais 2"; llama.cpp, ``llm_build_jais2``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from . import llama, nemotron, starcoder2

HPARAMS = nemotron.HPARAMS
TENSORS = nemotron.TENSORS
build_graph = nemotron.build_graph


CONVERT = replace(
    starcoder2.CONVERT,
    models=("Jais2ForCausalLM",),
    tensors=nemotron.CONVERT.tensors,
    keys=partial(llama.keys, act="relu_sqr"),
    defaults={"layer_norm_eps": 1e-5},
)
