"""MiniMax-Text-01 and M1: linear attention with a decay for each head, full in every eighth layer.

Source: MiniMax 2025, "MiniMax-01: Scaling Foundation Models with Lightning Attention"; llama.cpp,
``llama_model_minimax_01``.
"""

from __future__ import annotations

import math

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.ffn import ffn
from ..graph.hybrid import ATTENTION, KINDS, attention_or, states_where_recurrent
from ..graph.tensors import EXPERTS, OUTPUT, only_in
from ..hparams import Got, Key, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config, float32
from . import llama

NAME = "minimax-01"

_INTERVAL = 8  # of layers with full attention


def _head_counts(got: Got) -> tuple[int, ...]:
    period = max(got["interval"], 1)
    return tuple(
        0 if (i + 1) % period else n for i, n in enumerate(got["n_head_kv_arr"])
    )  # nothing is cached in the other layers


HPARAMS: Values = {
    "rope_neox": True,
    "interval": Key("full_attention_interval", _INTERVAL),
    "alpha": Key("residual_scale", type=float),
    "n_head_kv_arr": _head_counts,
    **KINDS,
    "states": states_where_recurrent(
        lambda got: {"kv": (got["head_dim_arr"][0] ** 2 * got["n_head_arr"][0],)}
    ),
}

TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd",),
    **ATTENTION,
    **only_in(
        "recurs",
        {
            "blk.{i}.attn_qkv.weight": ("n_embd", "3*n_embd_q"),
            "blk.{i}.attn_norm_2.weight": ("n_embd_q",),
            "blk.{i}.attn_gate.weight": ("n_embd", "n_embd_q"),
        },
    ),
    "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    **EXPERTS,
    **OUTPUT,
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    mixer, alpha = attention_or(_lightning), b.hparams.own["alpha"]
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):  # residuals are the normed inputs
        x = b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        cur, x = b.select_outputs(i, mixer(b, x, i), x)
        inp = ops.add(b.ctx, cur, ops.scale(b.ctx, x, alpha)).set_name(f"ffn_inp-{i}")
        x = b.rms_norm(inp, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        cur = ffn(b, x, i, "silu")
        inp = b.layer_output(ops.add(b.ctx, cur, ops.scale(b.ctx, x, alpha)), i)
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


def _lightning(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """Linear attention from a layer's normed input to its output projection.

    Shape:
        x [n_embd, T] -> the same
    """
    ctx, T, hp = b.ctx, b.n_tokens, b.hparams.of_layer(i)
    S, H = hp.head_dim, hp.n_head
    qkv = ops.silu(ctx, b.linear(x, f"blk.{i}.attn_qkv", f"QKVcur-{i}"))  # [3 S H, T]
    q, k, v = (
        ops.view_3d(ctx, qkv, (S, H, T), (4 * 3 * S, qkv.nb[1]), 4 * S * part) for part in range(3)
    )
    g = ops.repeat_4d(ctx, ops.reshape_3d(ctx, _decays(b, i), 1, H, 1), S, H, T, 1)
    y = ops.gated_linear_attn_slots(ctx, k, v, q, g, *b.state("kv", i), 1.0)
    y = ops.reshape_2d(ctx, y.set_name(f"qkv-{i}"), S * H, T)
    y = b.rms_norm(y, f"blk.{i}.attn_norm_2", f"qkv_norm-{i}")
    gate = ops.sigmoid(ctx, b.linear(x, f"blk.{i}.attn_gate", f"g-{i}"))
    return b.linear(ops.mul(ctx, gate, y), f"blk.{i}.attn_output", f"attn_out-{i}")


def _decays(b: GraphBuilder, i: int) -> Tensor:
    """The decay of each head, ``exp(-2^(-8 h / H))`` for h from 1 on, slower in later layers: [H].

    Heads decay as ALiBi's do; the powers differ by layer from 1 to nearly 0.
    """
    ctx, H = b.ctx, b.hparams.n_head
    share = 1 - i / max(b.hparams.n_layer - 1, 1) + 1e-5
    h = ops.arange(ctx, 1, H + 1, 1)
    slopes = ops.exp(ctx, ops.scale(ctx, h, -8 * math.log(2) / H))
    return ops.exp(ctx, ops.scale(ctx, slopes, -share))


def _keys(config: Config) -> Keys:
    n_layer, alpha = int(config["num_hidden_layers"]), config["layernorm_full_attention_alpha"]
    parts = ("full_attention", "linear_attention", "mlp")
    check_config(
        config,
        attn_type_list=[int((i + 1) % _INTERVAL == 0) for i in range(n_layer)],
        postnorm=True,
        shared_intermediate_size=0,
        **{f"layernorm_{part}_alpha": alpha for part in parts},
        **{f"layernorm_{part}_beta": 1.0 for part in parts},
    )
    return {
        **base_keys(config, "silu"),
        "residual_scale": float32(alpha),
        "rope.dimension_count": int(config["rotary_dim"]),
    }


_MIXER = "model.layers.{i}.self_attn"

CONVERT = Convert(
    models=("MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"),
    tensors={
        **llama.CONVERT.tensors,
        f"{_MIXER}.qkv_proj.weight": "blk.{i}.attn_qkv.weight",
        f"{_MIXER}.norm.weight": "blk.{i}.attn_norm_2.weight",
        f"{_MIXER}.output_gate.weight": "blk.{i}.attn_gate.weight",
        f"{_MIXER}.out_proj.weight": "blk.{i}.attn_output.weight",
    },
    keys=_keys,
)
