"""Refact: LLaMA's layers with ALiBi and one head of keys and values.

Source: Small Cloud AI 2023, "Refact 1.6B"; llama.cpp, ``llm_build_refact``.
"""

from __future__ import annotations

import numpy as np

from ..hparams import Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, base_keys, float32
from . import llama

HPARAMS: Values = {"n_rot": 0, "max_alibi_bias": 8.0}
TENSORS = llama.TENSORS
build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    n_ff = int(2 * 4 * int(config["n_embd"]) / 3)
    return base_keys(config) | {
        "feed_forward_length": -(-n_ff // 256) * 256,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": float32(config["layer_norm_epsilon"]),
    }


def _change(name: str, x: Array, config: Config) -> Tensors:
    for fused, parts in (
        ("attn_kv", ("attn_k", "attn_v")),
        ("ffn_gate_up", ("ffn_gate", "ffn_up")),
    ):
        if f".{fused}." in name:
            names = (name.replace(fused, part) for part in parts)
            return dict(zip(names, np.split(x, 2), strict=True))
    return {name: x}


CONVERT = Convert(
    models=("GPTRefactForCausalLM",),
    tensors={
        "transformer.wte.weight": "token_embd.weight",
        "transformer.h.{i}.ln_1.weight": "blk.{i}.attn_norm.weight",
        "transformer.h.{i}.attn.q.*": "blk.{i}.attn_q.*",
        "transformer.h.{i}.attn.kv.*": "blk.{i}.attn_kv.*",
        "transformer.h.{i}.attn.c_proj.*": "blk.{i}.attn_output.*",
        "transformer.h.{i}.ln_2.weight": "blk.{i}.ffn_norm.weight",
        "transformer.h.{i}.mlp.gate_up_proj.*": "blk.{i}.ffn_gate_up.*",
        "transformer.h.{i}.mlp.c_proj.*": "blk.{i}.ffn_down.*",
        "transformer.ln_f.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
    change=_change,
)
