"""Baichuan: LLaMA's graph; the 13B models have ALiBi in place of rope.

Source: Yang et al. 2023, "Baichuan 2: Open Large-scale Language Models"; llama.cpp,
``llm_build_baichuan``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..hparams import Values
from ..mapping.rules import Array, Config, Tensors
from . import llama

_LAYERS_13B = 40  # nothing else in a file says which model it is
_VOCAB_BAICHUAN2 = 125696

HPARAMS: Values = {
    "max_alibi_bias": lambda got: 8.0 if got["n_layer"] == _LAYERS_13B else 0.0,
    "nope_layers": lambda got: (got["n_layer"] == _LAYERS_13B,) * got["n_layer"],
}
TENSORS = llama.TENSORS
build_graph = llama.build_graph


def _change(name: str, x: Array, config: Config) -> Tensors:
    if name == "output.weight" and config["vocab_size"] == _VOCAB_BAICHUAN2:
        return {name: x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-12)}  # its NormHead
    return llama.change_fused(name, x, config) if ".attn_qkv." in name else {name: x}


CONVERT = replace(
    llama.CONVERT,
    models=("BaichuanForCausalLM", "BaiChuanForCausalLM"),
    tensors={
        **llama.CONVERT.tensors,
        "model.layers.{i}.self_attn.W_pack.*": "blk.{i}.attn_qkv.*",
    },
    keys=lambda config: llama.keys(config) | llama.PTH_LAYOUT,
    change=_change,
)
