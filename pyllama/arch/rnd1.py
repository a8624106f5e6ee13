"""RND1: Qwen3-MoE without causality, a diffusion language model.

Source: Radical Numerics 2025, "Training Diffusion Language Models at Scale using Autoregressive
Models"; llama.cpp, ``llama_model_rnd1``.
"""

from __future__ import annotations

from dataclasses import replace

from ..hparams import DIFFUSION, Values
from . import qwen3moe

HPARAMS: Values = {**qwen3moe.HPARAMS, **DIFFUSION}
TENSORS = qwen3moe.TENSORS
build_graph = qwen3moe.build_graph

CONVERT = replace(
    qwen3moe.CONVERT,
    models=("RND1",),
    keys=lambda config: qwen3moe.CONVERT.keys(config) | {"attention.causal": False},
)
