"""Talkie: norms without weights, embeddings added to each layer, norms of heads after rope.

Matrices that end a part have a factor, and so have the queries of each head.
Source: Talkie 2026, "talkie-1930"; llama.cpp, ``llama_model_talkie``.
"""

from __future__ import annotations

import numpy as np

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.ffn import ffn
from ..graph.tensors import ATTENTION, GATED_FFN, without
from ..hparams import Key, Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, base_keys, float32

HPARAMS: Values = {"rope_neox": True, "logit_scale": Key("logit_scale", type=float)}

TENSORS = {
    **without(ATTENTION, "attn_norm"),
    "blk.{i}.attn_q_norm.weight": ("1", "n_head"),
    **GATED_FFN,
    "blk.{i}.layer_output_scale.weight": ("1",),
    "token_embd.weight": ("n_embd", "n_vocab"),
    "output.weight": ("n_embd", "n_vocab"),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    n_layer, ctx = b.hparams.n_layer, b.ctx
    inp = embedding = b.rms_norm(b.embed("token_embd.weight"), "", "inp_norm")  # [n_embd, T]
    for i in range(n_layer):
        q, k, v = b.project_qkv(b.rms_norm(inp, "", f"attn_norm-{i}"), i)
        q = b.rms_norm(b.rope(q, f"Qcur-{i}", i), "", f"Qcur_norm-{i}")
        k = b.rms_norm(b.rope(k, f"Kcur-{i}", i), "", f"Kcur_norm-{i}")
        q = ops.mul(ctx, q, b.weight(f"blk.{i}.attn_q_norm.weight"))
        cur = b.attention(q, k, v, i)
        cur, inp, embedding = b.select_outputs(i, cur, inp, embedding)
        inp = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        inp = ffn(b, b.rms_norm(inp, "", f"ffn_norm-{i}"), i, "silu", residual=inp)
        skip = ops.mul(ctx, embedding, b.weight(f"blk.{i}.layer_output_scale.weight"))
        inp = b.layer_output(ops.add(ctx, inp, skip.set_name(f"embd_skip-{i}")), i)
    return b.output(b.rms_norm(inp, "", "result_norm"))


def _keys(config: Config) -> Keys:
    eps = float32(np.finfo(np.float32).eps)  # the default of torch's RMS norm
    keys = base_keys(config, "silu")
    return keys | {"attention.layer_norm_rms_epsilon": eps}


def _change(name: str, x: Array, config: Config) -> Tensors:
    """Rope of checkpoints has the other sign: the second half of each head of Q and K has, too."""
    if ".attn_q." in name or ".attn_k." in name:
        halves = x.reshape(-1, 2, int(config["head_dim"]) // 2, x.shape[-1])
        x = np.concatenate([halves[:, :1], -halves[:, 1:]], axis=1).reshape(x.shape)
    elif ".attn_q_norm." in name:
        x = x.reshape(-1, 1)  # a factor of each head
    return {name: x}


_LAYER = "model.blocks.{i}"
CONVERT = Convert(
    models=("TalkieForCausalLM",),
    tensors={
        "model.embed.weight": "token_embd.weight",
        f"{_LAYER}.attn.attn_query.weight": "blk.{i}.attn_q.weight",
        f"{_LAYER}.attn.attn_key.weight": "blk.{i}.attn_k.weight",
        f"{_LAYER}.attn.attn_value.weight": "blk.{i}.attn_v.weight",
        f"{_LAYER}.attn.attn_resid.weight": "blk.{i}.attn_output.weight",
        f"{_LAYER}.attn.head_gain.head_g": "blk.{i}.attn_q_norm.weight",
        f"{_LAYER}.attn_gain.a_g": "blk.{i}.attn_output.scale",
        f"{_LAYER}.mlp.mlp_gate.weight": "blk.{i}.ffn_gate.weight",
        f"{_LAYER}.mlp.mlp_linear.weight": "blk.{i}.ffn_up.weight",
        f"{_LAYER}.mlp.mlp_resid.weight": "blk.{i}.ffn_down.weight",
        f"{_LAYER}.mlp_gain.a_g": "blk.{i}.ffn_down.scale",
        f"{_LAYER}.embed_skip.a_g": "blk.{i}.layer_output_scale.weight",
        "lm_head": "output.weight",
        "lm_head.weight": "output.weight",
    },
    values={"lm_head_gain.w_g": "talkie.logit_scale"},
    ignored=(*Convert.ignored, "lm_head_gain.w_g"),
    keys=_keys,
    change=_change,
)
