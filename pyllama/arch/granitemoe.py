"""Granite-MoE: Granite with a mixture of experts, and shared experts in some models.

Source: IBM 2024, "Granite 3.0 Language Models"; llama.cpp, ``llama_model_granite_moe``.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.tensors import EXPERTS, SHARED_EXPERTS
from ..hparams import Key, Values
from ..mapping.rules import Config, Keys
from . import granite, llama

HPARAMS: Values = {
    **granite.HPARAMS,
    "n_ff_shexp": Key("expert_shared_feed_forward_length", 0),
}

TENSORS = {**granite.TENSORS, **EXPERTS, **SHARED_EXPERTS}

build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    keys = granite.CONVERT.keys(config)
    if config.get("shared_intermediate_size"):
        keys["expert_shared_feed_forward_length"] = int(config["shared_intermediate_size"])
    return keys


_EXPERTS = "model.layers.{i}.block_sparse_moe"
CONVERT = replace(
    granite.CONVERT,
    models=(
        "GraniteMoeForCausalLM",
        "GraniteMoeSharedForCausalLM",
        "GraniteMoeHybridForCausalLM",
    ),
    accepts=lambda config: not granite.is_hybrid(config),
    tensors={
        **llama.CONVERT.tensors,
        f"{_EXPERTS}.router.layer.weight": "blk.{i}.ffn_gate_inp.weight",
        f"{_EXPERTS}.input_linear.weight": "blk.{i}.ffn_gate_up_exps.weight",
        f"{_EXPERTS}.output_linear.weight": "blk.{i}.ffn_down_exps.weight",
        "model.layers.{i}.shared_mlp.input_linear.weight": "blk.{i}.ffn_gate_up_shexp.weight",
        "model.layers.{i}.shared_mlp.output_linear.weight": "blk.{i}.ffn_down_shexp.weight",
    },
    keys=_keys,
)
