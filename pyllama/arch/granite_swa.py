"""Granite-SWA: Granite with attention sinks, windows in some layers and no rope in some.

The experts of some models have gate and up in one matrix.
Source: IBM 2026, "Granite SWASH"; llama.cpp, ``llama_model_granite_swa``.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import ModelError
from ..graph.tensors import EXPERTS, SHARED_EXPERTS, without
from ..hparams import Key, Values, window_values
from ..mapping.rules import Config, Keys, window_keys
from . import granite, granitemoe, llama

HPARAMS: Values = {
    **granitemoe.HPARAMS,
    **window_values(4),
    "swa_dense_first": True,
    "rope_layers": Key("attention.rope_pattern", 1, tuple),
    "nope_layers": lambda got: tuple(not rotated for rotated in got["rope_layers"]),
}

TENSORS = {
    **granite.TENSORS,
    "blk.{i}.attn_sinks.weight": ("n_head",),
    **without(EXPERTS, "ffn_gate_exps", "ffn_up_exps"),
    "blk.{i}.ffn_gate_up_exps.weight": ("n_embd", "2*n_ff_exp", "n_expert"),
    **without(SHARED_EXPERTS, "ffn_gate_shexp"),
    "blk.{i}.ffn_up_shexp.weight": ("n_embd", "2*n_ff_shexp"),
}

build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    n_layer = int(config["num_hidden_layers"])
    bases = config.get("layer_rope_theta") or []  # 0: no rope
    rotated = [bool(x) for x in config.get("no_rope_layers") or bases]  # 1: rope, despite its name
    keys = granitemoe.CONVERT.keys(config) | window_keys(config, 4)
    used = sorted({float(x) for x in bases if x})
    if len(used) > 1:
        raise ModelError(f"config.json: layer_rope_theta has {len(used)} bases, must have one")
    if used:
        keys["rope.freq_base"] = used[0]
    if not config.get("layer_types"):
        keys["attention.sliding_window_pattern"] = [i % 4 != 0 for i in range(n_layer)]
    if rotated:
        keys["attention.rope_pattern"] = rotated
    return keys


CONVERT = replace(
    granitemoe.CONVERT,
    models=("GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM"),
    tensors={
        **granitemoe.CONVERT.tensors,
        "model.layers.{i}.self_attn.sinks": "blk.{i}.attn_sinks.weight",
        "model.layers.{i}.block_sparse_moe.router.weight": "blk.{i}.ffn_gate_inp.weight",
        "model.layers.{i}.block_sparse_moe.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
        "model.layers.{i}.block_sparse_moe.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
        "model.layers.{i}.shared_mlp.input_linear.weight": "blk.{i}.ffn_up_shexp.weight",
    },
    keys=_keys,
    defaults={"rms_norm_eps": 1e-5},
    change=llama.CONVERT.change,
)
