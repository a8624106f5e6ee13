"""Seed-OSS: Qwen2's graph; the norm of the feed-forward part has another name.

Source: ByteDance Seed 2025, "Seed-OSS"; llama.cpp, ``llm_build_seed_oss``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..graph.tensors import EXPERTS, without
from ..hparams import Values
from ..mapping.rules import base_keys
from . import llama

HPARAMS: Values = {"rope_neox": True}


def _renamed(name: str) -> str:
    return name.replace("ffn_norm", "post_attention_norm")


TENSORS = {_renamed(name): sizes for name, sizes in without(llama.TENSORS, *EXPERTS).items()}

build_graph = partial(llama.decoder, act="silu", ffn_norm="post_attention_norm")


CONVERT = replace(
    llama.CONVERT,
    models=("SeedOssForCausalLM",),
    tensors={name: _renamed(x) for name, x in llama.CONVERT.tensors.items() if "_exps" not in x},
    defaults={"head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-6},
    keys=lambda config: base_keys(config, "silu"),
    change=lambda name, x, config: {name: x},
)
