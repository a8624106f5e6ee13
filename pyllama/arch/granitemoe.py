"""Granite-MoE: Granite with a mixture of experts, and shared experts in some models.

Source: IBM 2024, "Granite 3.0 Language Models"; llama.cpp, ``llama_model_granite_moe``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..graph.tensors import EXPERTS, SHARED_EXPERTS
from ..hparams import Key, Values
from ..mapping.rules import Array, Config, Tensors
from . import granite, llama

HPARAMS: Values = {
    **granite.HPARAMS,
    "n_ff_shexp": Key("expert_shared_feed_forward_length", 0),
}

TENSORS = {**granite.TENSORS, **EXPERTS, **SHARED_EXPERTS}

build_graph = llama.build_graph


def _keys(config: Config) -> dict[str, Any]:
    keys = granite.CONVERT.keys(config)
    if config.get("shared_intermediate_size"):
        keys["expert_shared_feed_forward_length"] = int(config["shared_intermediate_size"])
    return keys


def _change(name: str, x: Array, config: Config) -> Tensors:
    if "gate_up" not in name:
        return llama.CONVERT.change(name, x, config)
    gate, up = np.split(x, 2, axis=-2)
    return {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}


_EXPERTS = "model.layers.{i}.block_sparse_moe"
CONVERT = replace(
    granite.CONVERT,
    models=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    tensors={
        **llama.CONVERT.tensors,
        f"{_EXPERTS}.router.layer.weight": "blk.{i}.ffn_gate_inp.weight",
        f"{_EXPERTS}.input_linear.weight": "blk.{i}.ffn_gate_up_exps.weight",
        f"{_EXPERTS}.output_linear.weight": "blk.{i}.ffn_down_exps.weight",
        "model.layers.{i}.shared_mlp.input_linear.weight": "blk.{i}.ffn_gate_up_shexp.weight",
        "model.layers.{i}.shared_mlp.output_linear.weight": "blk.{i}.ffn_down_shexp.weight",
    },
    keys=_keys,
    change=_change,
)
