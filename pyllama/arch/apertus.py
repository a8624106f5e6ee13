"""Apertus: xIELU without a gate, norms of the queries and keys of each head, rope on halves.

The numbers of xIELU differ between layers; files have them as metadata.
Source: Apertus Team 2025, "Apertus: Democratizing Open and Compliant LLMs"; llama.cpp,
``llm_build_apertus``.
"""

from __future__ import annotations

from functools import partial

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.decoder import pre_norm_decoder
from ..graph.tensors import without
from ..hparams import Key, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config, head_columns
from . import qwen3

XIELU = ("alpha_n", "alpha_p", "beta", "eps")

HPARAMS: Values = {
    "rope_neox": True,
    "alpha_n": Key("xielu.alpha_n", -1.05, tuple, prefixed=False),
    "alpha_p": Key("xielu.alpha_p", 0.2, tuple, prefixed=False),
    "beta": Key("xielu.beta", 0.5, tuple, prefixed=False),
    "eps": Key("xielu.eps", -1e-6, tuple, prefixed=False),
}

TENSORS = without(qwen3.TENSORS, "ffn_gate")


def _ffn(b: GraphBuilder, x: Tensor, i: int, residual: Tensor) -> Tensor:
    cur = b.linear(x, f"blk.{i}.ffn_up", f"ffn_up-{i}")
    cur = ops.xielu(b.ctx, cur, *(b.hparams.own[name][i] for name in XIELU))
    cur = cur.set_name(f"ffn_xielu-{i}")
    return b.linear(cur, f"blk.{i}.ffn_down", f"ffn_down-{i}", residual=residual)


build_graph = partial(pre_norm_decoder, feed_forward=_ffn)


def _keys(config: Config) -> Keys:
    check_config(config, hidden_act="xielu")
    head_dim = head_columns(config)
    return {"vocab_size": config["vocab_size"], "rope.dimension_count": head_dim} | base_keys(
        config
    )


_NORMS = {"input_layernorm": "attention_layernorm", "post_attention": "feedforward"}


def _renamed(name: str) -> str:
    for theirs, ours in _NORMS.items():
        name = name.replace(theirs, ours)
    return name


CONVERT = Convert(
    models=("ApertusForCausalLM",),
    tensors={
        _renamed(name): x
        for name, x in without(qwen3.CONVERT.tensors, "gate_proj", "score").items()
    },
    values={f"model.layers.{{i}}.mlp.act_fn.{name}": f"xielu.{name}" for name in XIELU},
    ignored=("*.act_fn.*", "*.rotary_emb.inv_freq"),
    defaults={"rope_theta": 12000000.0},
    keys=_keys,
)
