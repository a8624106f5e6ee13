"""Qwen3.5-MoE (text): Qwen3.5 with a mixture of experts, and a shared expert with a gate.

Source: Qwen Team 2026, "Qwen3.5"; llama.cpp, ``llama_model_qwen35moe``.
"""

from __future__ import annotations

import numpy as np

from ..graph.tensors import OUTPUT
from ..hparams import Values
from ..mapping.rules import Array, Config, Convert, Tensors
from . import qwen3next, qwen35

HPARAMS: Values = qwen3next.HPARAMS

TENSORS = {**qwen35.MIXER_TENSORS, **qwen3next.EXPERT_TENSORS, **OUTPUT}

MTP = qwen3next.MTP

build_graph = qwen3next.build_graph


def _change(name: str, x: Array, config: Config) -> Tensors:
    """As of Qwen3.5; gate and up of all experts apart.

    Shape:
        NumPy order, gate_up [n_expert, 2 * n_ff_exp, n_embd]
    """
    if "gate_up" not in name:
        return qwen35.change(name, x, config)
    gate, up = np.split(x, 2, axis=1)
    return {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}


CONVERT = Convert(
    models=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    tensors={
        **qwen35.NAMES,
        **qwen3next.EXPERT_NAMES,
        "model.layers.{i}.mlp.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
        "model.layers.{i}.mlp.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
    },
    keys=qwen35.with_sections(qwen3next.keys_of_experts),
    change=_change,
    defaults=qwen3next.DEFAULTS,
)
