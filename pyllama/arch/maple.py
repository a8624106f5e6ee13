"""Maple: Qwen3-MoE's graph with windows, rope in windowed layers only, experts with limits.

Source: Deepgrove 2026, "Maple"; llama.cpp, ``llama_model_maple``.
"""

from __future__ import annotations

import numpy as np

from ..graph.dense import SWIGLU_LIMITS
from ..graph.tensors import without
from ..hparams import Values, nope_without_window, window_values
from ..mapping.rules import (
    Config,
    Convert,
    Keys,
    base_keys,
    check_config,
    head_columns,
    window_keys,
)
from . import qwen2moe, qwen3, qwen3moe

HPARAMS: Values = {
    **SWIGLU_LIMITS,
    "rope_neox": True,
    **window_values(4, base=0.0),
    "nope_layers": nope_without_window,
}

TENSORS = without(qwen3moe.TENSORS, "rope_f")

build_graph = qwen3.build_graph

_LIMIT = 7.0  # not in config.json


def _keys(config: Config) -> Keys:
    check_config(
        config, hidden_act="silu", num_shared_experts=0, norm_topk_prob=True,
        nope_on_global_attention=True,
    )  # fmt: skip
    n_layer = int(config["num_hidden_layers"])
    return {
        "rope.dimension_count": head_columns(config),
        **base_keys(config),
        **window_keys(config, 4),
        "vocab_size": int(config["vocab_size"]),
        "swiglu_clamp_exp": np.full(n_layer, _LIMIT, np.float32),
    }


CONVERT = Convert(
    models=("MapleForCausalLM",),
    tensors={**qwen3.CONVERT.tensors, **qwen2moe.ROUTED},
    keys=_keys,
)
