"""ERNIE 4.5: LLaMA's graph; checkpoints rotate adjacent pairs too.

Source: Baidu 2025, "ERNIE 4.5 Technical Report"; llama.cpp, ``llm_build_ernie4_5``.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.tensors import EXPERTS, without
from ..hparams import Values
from ..mapping.rules import base_keys
from . import llama

HPARAMS: Values = {}

TENSORS = without(llama.TENSORS, *EXPERTS)

build_graph = llama.build_graph

CONVERT = replace(
    llama.CONVERT,
    models=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    defaults={"head_dim": 128, "rope_theta": 500000.0},
    keys=lambda config: base_keys(config, "silu"),
    change=lambda name, x, config: {name: x},
)
