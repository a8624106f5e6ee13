"""Bamboo: Mistral with ReLU on both gate and up, whose products are mostly zero.

TurboSparse-Mistral is one; TurboSparse-Mixtral is Mixtral with the same two ReLUs in its experts.
Source: PowerInfer, ``build_bamboo``; Song et al. 2024, "Turbo Sparse".
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from . import llama

HPARAMS = {**llama.HPARAMS, "relu_experts": True}
TENSORS = llama.TENSORS

build_graph = partial(llama.decoder, act="relu", up_act="relu")


CONVERT = replace(
    llama.CONVERT, models=("BambooForCausalLM", "TurboSparseMixtralForCausalLM"), relu=True
)
