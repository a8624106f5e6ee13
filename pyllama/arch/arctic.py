"""Arctic: a dense feed-forward part beside experts, which read the layer's input.

Source: Snowflake 2024, "Snowflake Arctic"; llama.cpp, ``llama_model_arctic``.
"""

from __future__ import annotations

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.dense import ffn_hidden
from ..graph.experts import experts
from ..graph.tensors import ATTENTION, EXPERTS, OUTPUT, without
from ..hparams import Values
from ..mapping.rules import Config, Convert, Keys, check_config
from . import llama

HPARAMS: Values = {}

TENSORS = {
    **ATTENTION,
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    "blk.{i}.ffn_gate.weight": ("n_embd", "n_embd"),
    "blk.{i}.ffn_up.weight": ("n_embd", "n_embd"),
    "blk.{i}.ffn_down.weight": ("n_embd", "n_embd"),
    "blk.{i}.ffn_norm_exps.weight": ("n_embd",),
    **EXPERTS,
    **OUTPUT,
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        cur = b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        cur = b.self_attention(cur, i)
        cur, inp = b.select_outputs(i, cur, inp)
        mid = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        cur = b.rms_norm(mid, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        cur = ffn_hidden(b, cur, i, "silu", "")
        dense = b.linear(cur, f"blk.{i}.ffn_down", f"ffn_out-{i}", residual=mid)
        cur = b.rms_norm(inp, f"blk.{i}.ffn_norm_exps", f"ffn_norm_exps-{i}")
        inp = b.layer_output(ops.add(b.ctx, experts(b, cur, i, "silu"), dense), i)
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


def _keys(config: Config) -> Keys:
    check_config(config, use_residual=True, parallel_attn_mlp_res=True, moe_layer_frequency=1)
    keys = llama.keys(config)
    for name in ("key_length", "value_length"):
        keys.pop(f"attention.{name}")
    return keys


_LAYER = "model.layers.{i}"
CONVERT = Convert(
    models=("ArcticForCausalLM",),
    tensors={
        **without(llama.CONVERT.tensors, ".mlp."),
        f"{_LAYER}.residual_layernorm.weight": "blk.{i}.ffn_norm.weight",
        f"{_LAYER}.post_attention_layernorm.weight": "blk.{i}.ffn_norm_exps.weight",
        f"{_LAYER}.residual_mlp.w1.weight": "blk.{i}.ffn_gate.weight",
        f"{_LAYER}.residual_mlp.w2.weight": "blk.{i}.ffn_down.weight",
        f"{_LAYER}.residual_mlp.w3.weight": "blk.{i}.ffn_up.weight",
    },
    keys=_keys,
    change=llama.CONVERT.change,
)
