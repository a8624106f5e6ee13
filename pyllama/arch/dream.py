"""Dream: Qwen2 without causality, a diffusion language model.

Source: Ye et al. 2025, "Dream 7B: Diffusion Large Language Models"; llama.cpp,
``llama_model_dream``.
"""

from __future__ import annotations

from dataclasses import replace

from ..hparams import DIFFUSION, Values
from . import qwen2

HPARAMS: Values = {**qwen2.HPARAMS, **DIFFUSION}
TENSORS = qwen2.TENSORS
build_graph = qwen2.build_graph

CONVERT = replace(
    qwen2.CONVERT,
    models=("DreamModel",),
    keys=lambda config: qwen2.CONVERT.keys(config) | {"attention.causal": False},
)
