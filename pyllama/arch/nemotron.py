"""Nemotron: StarCoder2's graph with squared ReLU and rope on a part of each head.

Norm weights in files have 1 added.
Source: Parmar et al. 2024, "Nemotron-4 15B Technical Report"; llama.cpp, ``llm_build_nemotron``.
"""

from __future__ import annotations

from functools import partial

from ..graph.decoder import layer_norm_decoder
from ..hparams import Values
from ..mapping.rules import Config, Convert, Keys, base_keys, float32, head_columns
from . import gemma3, starcoder2

HPARAMS: Values = starcoder2.HPARAMS
TENSORS = starcoder2.TENSORS

build_graph = partial(layer_norm_decoder, act="relu_sqr")


def _keys(config: Config) -> Keys:
    head_dim = head_columns(config)
    keys = {
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.scaling.type": "none",
        "vocab_size": config["vocab_size"],
        "attention.layer_norm_epsilon": float32(config["norm_eps"]),
    }
    return keys | base_keys(config, "relu_sqr")


CONVERT = Convert(
    models=("NemotronForCausalLM",),
    tensors={
        name.replace("c_fc", "up_proj").replace("c_proj", "down_proj"): x
        for name, x in starcoder2.CONVERT.tensors.items()
    },
    defaults={"partial_rotary_factor": 0.5, "norm_eps": 1e-5, "rope_theta": 10000.0},
    keys=_keys,
    change=gemma3.add_one,
)
