"""BitNet b1.58: LLaMA with norms before the output matrix and the down matrix, rope on halves.

Its matrices are ternary: conversion rounds the checkpoint's to -1, 0 or 1 times their mean size.
Source: Ma et al. 2024, "The Era of 1-bit LLMs"; llama.cpp, ``llm_build_bitnet``.
"""

from __future__ import annotations

import numpy as np

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.dense import ffn_hidden
from ..graph.tensors import ATTENTION, GATED_FFN
from ..hparams import Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, check_config
from . import llama, qwen2

HPARAMS: Values = {"rope_neox": True}

TENSORS = {
    **ATTENTION,
    "blk.{i}.attn_sub_norm.weight": ("n_embd_out",),
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    **GATED_FFN,
    "blk.{i}.ffn_sub_norm.weight": ("n_ff",),
    "output_norm.weight": ("n_embd",),
    "token_embd.weight": ("n_embd", "n_vocab"),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    n_layer, act = b.hparams.n_layer, b.hparams.hidden_act or "silu"
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(n_layer):
        cur = b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        cur = b.self_attention(cur, i)
        cur, inp = b.select_outputs(i, cur, inp)
        cur = b.rms_norm(cur, f"blk.{i}.attn_sub_norm", f"attn_sub_norm-{i}")
        inp = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        cur = b.rms_norm(inp, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        cur = ffn_hidden(b, cur, i, act, "")  # [n_ff, T]
        cur = b.rms_norm(cur, f"blk.{i}.ffn_sub_norm", f"ffn_sub_norm-{i}")
        inp = b.linear(cur, f"blk.{i}.ffn_down", f"ffn_down-{i}", residual=inp)
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


def _keys(config: Config) -> Keys:
    check_config(config, attention_bias=False, quantization_config=None)
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}
    return scaling | llama.keys(config)


def _change(name: str, x: Array, config: Config) -> Tensors:
    if name.startswith("blk.") and x.ndim == 2:
        size = max(np.abs(x).mean(), np.float32(1e-5))
        x = np.clip(np.round(x / size), -1, 1) * size
    return {name: x}


CONVERT = Convert(
    models=("BitnetForCausalLM", "BitNetForCausalLM"),
    tensors={
        **qwen2.CONVERT.tensors,
        "model.layers.{i}.self_attn.inner_attn_ln.weight": "blk.{i}.attn_sub_norm.weight",
        "model.layers.{i}.self_attn.attn_sub_norm.weight": "blk.{i}.attn_sub_norm.weight",
        "model.layers.{i}.mlp.ffn_layernorm.weight": "blk.{i}.ffn_sub_norm.weight",
        "model.layers.{i}.mlp.ffn_sub_norm.weight": "blk.{i}.ffn_sub_norm.weight",
    },
    keys=_keys,
    change=_change,
)
