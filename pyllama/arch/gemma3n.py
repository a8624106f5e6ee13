"""Gemma 3n (text): AltUp, LAuReL, per-layer embeddings; the last layers share keys and values.

In the first layers, only gates far above their mean are active.
Source: Google 2025, "Gemma 3n"; llama.cpp, ``llama_model_gemma3n``.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

import pyggml as ops
from pyggml.tensor import Tensor

from ..activation import gated
from ..graph.altup import altup_correct, altup_merge, altup_predict, altup_streams, laurel, stream
from ..graph.attention.shared_kv import KEYS_AND_VALUES, SHARED_KV, normalized_qkv
from ..graph.builder import GraphBuilder
from ..graph.per_layer import PER_LAYER, PER_LAYER_SIZES, per_layer_inputs, per_layer_output
from ..graph.tensors import without
from ..hparams import Key, Values, window_values
from ..mapping.rules import (
    OTHER_MEDIA,
    Array,
    Config,
    Convert,
    Keys,
    Tensors,
    base_keys,
    check_config,
)
from . import gemma3

HPARAMS: Values = {
    "rope_neox": True,
    **window_values(5, base=10000.0),
    "attn_scale": 1.0,
    "final_logit_softcap": Key("final_logit_softcapping", 30.0),
    "n_altup": Key("altup.num_inputs", 4),
    "i_altup": Key("altup.active_idx", 0),
    "n_altup_other": lambda got: got["n_altup"] - 1,
    "laurel_rank": 64,
    "sparsity": Key("activation_sparsity_scale", -math.inf, tuple),
    **PER_LAYER_SIZES,
    **SHARED_KV,
}

TENSORS = {
    **without(gemma3.TENSORS, "attn_k", "attn_v"),
    **KEYS_AND_VALUES,
    "blk.{i}.altup_correct_coef.weight": ("n_altup", "n_altup"),
    "blk.{i}.altup_correct_scale.weight": ("n_embd",),
    "blk.{i}.altup_predict_coef.weight": ("n_altup", "n_altup*n_altup"),
    "blk.{i}.altup_router.weight": ("n_embd", "n_altup"),
    "blk.{i}.altup_router_norm.weight": ("n_embd",),
    "blk.{i}.laurel_l.weight": ("n_embd", "laurel_rank"),
    "blk.{i}.laurel_r.weight": ("laurel_rank", "n_embd"),
    "blk.{i}.laurel_post_norm.weight": ("n_embd",),
    **PER_LAYER,
    "altup_proj.weight": ("n_embd", "n_embd", "n_altup_other"),
    "altup_unembd_proj.weight": ("n_embd", "n_embd", "n_altup_other"),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    hp, ctx = b.hparams, b.ctx
    inp = ops.scale(ctx, b.embed("token_embd.weight"), math.sqrt(hp.n_embd))  # [n_embd, T]
    inputs = per_layer_inputs(b, inp)  # [n_embd_per_layer, T, n_layer]
    streams = altup_streams(b, inp)  # [n_embd, T, n_altup]
    active = hp.own["i_altup"]
    for i in range(hp.n_layer):
        predicted = altup_predict(b, streams, i)
        inp = stream(b, predicted, active)
        cur = b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        residual = laurel(b, cur, i)
        q, k, v = normalized_qkv(b, cur, i)
        k = None if k is None else b.rope(k, f"Kcur-{i}", i)
        cur = b.attention(b.rope(q, f"Qcur-{i}", i), k, v, i)
        cur = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}")
        cur = b.rms_norm(cur, f"blk.{i}.post_attention_norm", f"attn_post_norm-{i}")
        cur = ops.add(ctx, ops.add(ctx, cur, inp), residual)
        inp = ops.scale(ctx, cur, math.sqrt(0.5)).set_name(f"attn_laurel-{i}")
        cur = _ffn(b, b.rms_norm(inp, f"blk.{i}.ffn_norm", f"ffn_norm-{i}"), i)
        cur = b.rms_norm(cur, f"blk.{i}.post_ffw_norm", f"ffn_post_norm-{i}")
        streams = altup_correct(b, predicted, ops.add(ctx, cur, inp), i)
        cur = ops.mul(
            ctx, stream(b, streams, active), b.weight(f"blk.{i}.altup_correct_scale.weight")
        )
        cur = per_layer_output(b, cur, stream(b, inputs, i), i)
        first = ops.reshape_3d(ctx, stream(b, streams, 0), hp.n_embd, b.n_tokens, 1)
        n, rest = streams.ne[2] - 1, streams.nb[2]
        others = ops.view_3d(ctx, streams, (*streams.ne[:2], n), streams.nb[1:3], rest)
        streams = ops.concat(ctx, first, ops.add(ctx, others, cur), 2).set_name(f"l_out-{i}")
    cur = b.of_outputs(altup_merge(b, streams))
    return b.output(b.rms_norm(cur, "output_norm", "result_norm"))


def _ffn(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """GEGLU; in sparse layers of ``relu(gate - mean - sparsity * standard deviation)``."""
    ctx, sparsity = b.ctx, b.hparams.of_layer(i).own["sparsity"]
    gate = b.linear(x, f"blk.{i}.ffn_gate", f"ffn_gate-{i}")  # [n_ff, T]
    if math.isfinite(sparsity):
        gate = ops.sub(ctx, gate, ops.mean(ctx, gate))
        deviation = ops.sqrt(ctx, ops.mean(ctx, ops.sqr(ctx, gate)))  # [1, T]
        gate = ops.relu(ctx, ops.sub(ctx, gate, ops.scale(ctx, deviation, sparsity)))
    hidden = gated(ctx, gate, b.linear(x, f"blk.{i}.ffn_up", f"ffn_up-{i}"), "gelu")
    return b.linear(hidden, f"blk.{i}.ffn_down", f"ffn_out-{i}")


def _keys(config: Config) -> Keys:
    check_config(config, attention_bias=False, laurel_rank=64, altup_correct_scale=True)
    check_config(config, hidden_activation="gelu_pytorch_tanh")
    kinds, n_ff = config["layer_types"], config["intermediate_size"]
    share = config["activation_sparsity_pattern"]
    scales = [NormalDist().inv_cdf(x) if x > 0 else -math.inf for x in share]
    return base_keys({**config, "intermediate_size": None}) | {
        "feed_forward_length": [int(x) for x in n_ff] if isinstance(n_ff, list) else int(n_ff),
        "attention.sliding_window": int(config["sliding_window"]),
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
        "attention.shared_kv_layers": int(config["num_kv_shared_layers"]),
        "final_logit_softcapping": float(config["final_logit_softcapping"]),
        "altup.active_idx": int(config["altup_active_idx"]),
        "altup.num_inputs": int(config["altup_num_inputs"]),
        "embedding_length_per_layer_input": int(config["hidden_size_per_layer_input"]),
        "activation_sparsity_scale": np.array(scales, np.float32),
    }


def pad_vocabulary(name: str, x: Array, config: Config) -> Tensors:
    """Rows for the tokens of images and audio, which a table may lack.

    Per-layer embeddings take the row of token 0 for them, as transformers does; llama.cpp's
    converter writes zeros.
    """
    n = config["vocab_size"] - len(x)
    if name.endswith("token_embd.weight") and n > 0:
        row = x[:1] if name.startswith("per_layer") else np.zeros_like(x[:1])
        x = np.concatenate([x, np.repeat(row, n, axis=0)])
    return {name: x}


PER_LAYER_NAMES = {
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
    "model.layers.{i}.per_layer_input_gate.weight": "blk.{i}.inp_gate.weight",
    "model.layers.{i}.per_layer_projection.weight": "blk.{i}.proj.weight",
    "model.layers.{i}.post_per_layer_input_norm.weight": "blk.{i}.post_norm.weight",
}
_NAMES = {
    **gemma3.NAMES,
    **PER_LAYER_NAMES,
    "model.layers.{i}.altup.correction_coefs.weight": "blk.{i}.altup_correct_coef.weight",
    "model.layers.{i}.altup.correct_output_scale": "blk.{i}.altup_correct_scale.weight",
    "model.layers.{i}.altup.prediction_coefs.weight": "blk.{i}.altup_predict_coef.weight",
    "model.layers.{i}.altup.modality_router.weight": "blk.{i}.altup_router.weight",
    "model.layers.{i}.altup.router_norm.weight": "blk.{i}.altup_router_norm.weight",
    "model.layers.{i}.laurel.linear_left.weight": "blk.{i}.laurel_l.weight",
    "model.layers.{i}.laurel.linear_right.weight": "blk.{i}.laurel_r.weight",
    "model.layers.{i}.laurel.post_laurel_norm.weight": "blk.{i}.laurel_post_norm.weight",
    "model.altup_projections.{e}.weight": "altup_proj.weight",
    "model.altup_unembed_projections.{e}.weight": "altup_unembd_proj.weight",
}
CONVERT = Convert(
    models=("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"),
    tensors=_NAMES,
    other_media=(*OTHER_MEDIA, "*embed_vision.*", "*embed_audio.*"),
    keys=_keys,
    defaults={"head_dim": 256, "rms_norm_eps": 1e-6, "sliding_window": 512},
    change=pad_vocabulary,
)
