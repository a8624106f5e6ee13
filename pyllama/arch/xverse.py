"""XVERSE: LLaMA by another name.

Source: XVERSE Technology 2023, "XVERSE-13B"; llama.cpp, ``llm_build_xverse``.
"""

from __future__ import annotations

from dataclasses import replace

from . import llama

HPARAMS = llama.HPARAMS
TENSORS = llama.TENSORS
build_graph = llama.build_graph
CONVERT = replace(
    llama.CONVERT,
    models=("XverseForCausalLM",),
    keys=lambda config: llama.keys(config) | llama.PTH_LAYOUT,
)
