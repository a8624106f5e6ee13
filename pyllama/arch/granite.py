"""Granite: LLaMA's graph with factors on embeddings, residuals, scores and logits.

Source: IBM 2024, "Granite 3.0 Language Models"; llama.cpp, ``llm_build_granite``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..graph.tensors import EXPERTS, without
from ..hparams import Key, Values
from ..mapping.rules import Array, Config, Keys, Tensors, float32
from . import llama

HPARAMS: Values = {
    "embedding_scale": Key("embedding_scale", 1.0),
    "residual_scale": Key("residual_scale", 1.0),
    "attn_scale": Key("attention.scale", 0.0),
    "logit_divisor": Key("logit_scale", type=float),
    "logit_scale": lambda got: 1 / got["logit_divisor"] if got["logit_divisor"] else 0.0,
}

TENSORS = without(llama.TENSORS, *EXPERTS)

build_graph = llama.build_graph

SCALES = {  # llama.cpp's keys -> names in config.json, which may lack them: 1
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}
_GRANITE_4 = "GraniteMoeHybridForCausalLM"  # models without recurrent layers have this class, too


def is_hybrid(config: Config) -> bool:
    """Whether a checkpoint is of Granite 4 with recurrent layers, or without rope."""
    kinds = config.get("layer_types") or ("",)
    attention = all(kind in ("attention", "full_attention") for kind in kinds)
    rotates = config.get("position_embedding_type") == "rope"
    return _GRANITE_4 in config["architectures"] and not (attention and rotates)


def _keys(config: Config) -> Keys:
    scales = {key: float32(config.get(name, 1.0)) for key, name in SCALES.items()}
    keys = llama.CONVERT.keys(config) | scales
    if _GRANITE_4 in config["architectures"] and not config.get("num_local_experts"):
        # Granite 4 calls it a shared expert
        keys["feed_forward_length"] = int(config["shared_intermediate_size"])
    return keys


def _change(name: str, x: Array, config: Config) -> Tensors:
    if "gate_up" not in name:
        return llama.CONVERT.change(name, x, config)
    gate, up = np.split(x, 2, axis=-2)
    return {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}


CONVERT = replace(
    llama.CONVERT,
    defaults={"rms_norm_eps": 1e-6},
    models=("GraniteForCausalLM", _GRANITE_4),
    tensors={
        **llama.CONVERT.tensors,
        "model.layers.{i}.shared_mlp.input_linear.weight": "blk.{i}.ffn_gate_up.weight",
        "model.layers.{i}.shared_mlp.output_linear.weight": "blk.{i}.ffn_down.weight",
    },
    accepts=lambda config: not is_hybrid(config) and not config.get("num_local_experts"),
    keys=_keys,
    change=_change,
)
