"""Jais 2: Nemotron's graph with rope on whole heads.

Source: Jais 2 Team 2025, "Jais 2"; llama.cpp, ``llm_build_jais2``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..mapping.rules import Config
from . import llama, nemotron, starcoder2

HPARAMS = nemotron.HPARAMS
TENSORS = nemotron.TENSORS
build_graph = nemotron.build_graph


def _keys(config: Config) -> dict[str, Any]:
    return llama.keys(config, "relu_sqr")


CONVERT = replace(
    starcoder2.CONVERT,
    models=("Jais2ForCausalLM",),
    tensors=nemotron.CONVERT.tensors,
    keys=_keys,
)
