"""Hy4: latent attention with sinks and a gate, hyper-connections, experts with limits.

Sparse attention as in ``deepseek32``, if the model has it.
Source: Tencent 2026, "Hy4"; llama.cpp, ``llama_model_hy_v4``.
"""

from __future__ import annotations

import numpy as np

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph import hyper_connections as hc
from ..graph.attention.factors import attention_gate
from ..graph.attention.mla import latent_attention
from ..graph.builder import GraphBuilder
from ..graph.dense import SWIGLU_LIMITS
from ..graph.ffn import ffn
from ..hparams import GATINGS, Key, Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, float32
from . import deepseek2, deepseek32, glm_dsa

HPARAMS: Values = {
    **deepseek32.HPARAMS,
    **SWIGLU_LIMITS,
    **hc.HPARAMS,
    "n_sparse_keys": Key("attention.indexer.top_k", 0),
    "n_indexer_head": Key("attention.indexer.head_count", 0),
    "n_indexer_key": Key("attention.indexer.key_length", 0),
    "indexer_eps": lambda got: got["norm_eps"],
    "indexer_neox": False,
    "indexer_rope_last": True,
    "expert_gating": Key("expert_gating_func", GATINGS.index("sigmoid")),
}

TENSORS = {
    **deepseek32.TENSORS,
    "blk.{i}.attn_sinks.weight": ("n_head",),
    "blk.{i}.attn_gate.weight": ("n_embd", "n_head*n_value"),
    **hc.TENSORS,
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    streams = hc.start_streams(b, b.embed("token_embd.weight"))  # [n_embd, n_hc, T]
    for i in range(b.hparams.n_layer):
        x, gate = hc.read_streams(b, streams, f"blk.{i}.hc_attn", i)
        x = b.rms_norm(x, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        cur = attention_gate(b, latent_attention(b, x, i), x, i, "sigmoid")
        cur = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}")
        streams = hc.write_streams(b, cur, streams, gate)
        x, gate = hc.read_streams(b, streams, f"blk.{i}.hc_ffn", i)
        cur = ffn(b, b.rms_norm(x, f"blk.{i}.ffn_norm", f"ffn_norm-{i}"), i, "silu")
        streams = hc.write_streams(b, cur, streams, gate).set_name(f"l_out-{i}")
    n_embd, n_hc, n_tokens = streams.ne[:3]
    flat = ops.reshape_2d(b.ctx, streams, n_embd * n_hc, n_tokens)
    flat = b.of_outputs(flat)
    streams = ops.reshape_3d(b.ctx, flat, n_embd, n_hc, flat.ne[1])
    return b.output(b.rms_norm(hc.merge_streams(b, streams), "output_norm", "result_norm"))


def _keys(config: Config) -> Keys:
    keys = glm_dsa.CONVERT.keys(config) | {
        "hyper_connection.count": int(config["hc_mult"]),
        "hyper_connection.epsilon": float32(config["hc_eps"]),
        "hyper_connection.magnitude": float32(config["hc_magnitude"]),
    }
    limit, n_layer = float(config.get("swiglu_limit") or 0.0), int(config["num_hidden_layers"])
    return keys | ({"swiglu_clamp_exp": np.full(n_layer, limit, np.float32)} if limit > 0 else {})


def _change(name: str, x: Array, config: Config) -> Tensors:
    if "gate_up" not in name:
        return deepseek2.change_latent(name, x, config)
    gate, up = np.split(x, 2, axis=-2)
    return {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}


_LAYER = "model.layers.{i}"
CONVERT = Convert(
    models=("HYV4ForCausalLM",),
    tensors={
        **deepseek32.CONVERT.tensors,
        f"{_LAYER}.self_attn.learnable_sink_param": "blk.{i}.attn_sinks.weight",
        f"{_LAYER}.self_attn.linear_gate.weight": "blk.{i}.attn_gate.weight",
        f"{_LAYER}.mlp.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
        f"{_LAYER}.mlp.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
        **{
            f"{_LAYER}.hc_{theirs}_layer.hc_pre.hc_{part}": f"blk.{{i}}.hc_{ours}_{part}.weight"
            for theirs, ours in (("attn", "attn"), ("mlp", "ffn"))
            for part in ("fn", "base", "scale")
        },
        **{
            f"model.hc_head.hc_head_{part}": f"output_hc_{part}.weight"
            for part in ("fn", "base", "scale")
        },
    },
    keys=_keys,
    change=_change,
    defaults={"rms_norm_eps": 1e-5},
    ignored=(*Convert.ignored, "model.mtp_layers.*"),
)
