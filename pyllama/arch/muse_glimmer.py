"""Muse Glimmer (text): gated attention, norms before and after each part, rope in windowed layers.

Embeddings, queries and keys have norms without weights.
Source: Meta 2026, "Muse Glimmer"; llama.cpp, ``llama_model_muse_glimmer``.
"""

from __future__ import annotations

import numpy as np

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.tensors import without
from ..hparams import Key, Values, nope_without_window, window_values
from ..mapping.rope import rope_factors
from ..mapping.rules import (
    Array,
    Config,
    Convert,
    Keys,
    Tensors,
    check_config,
    float32,
    window_keys,
)
from . import gemma3, llama

NAME = "muse-glimmer"

HPARAMS: Values = {
    **window_values(4, base=0.0),
    "nope_layers": nope_without_window,
    "logit_scale": Key("logit_scale", type=float),
    "final_logit_softcap": Key("final_logit_softcapping", 0.0),
}

TENSORS = {
    **without(gemma3.TENSORS, "rope_f"),
    "blk.{i}.attn_gate.weight": ("n_embd", "n_embd_out"),
}
_POST_EPS = 1e-8  # of the norms after attention and feed-forward part


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    inp = b.rms_norm(b.embed("token_embd.weight"), "", "embd_norm")  # [n_embd, T]
    return gemma3.decoder(b, "silu", gate="sigmoid", inp=inp, post_eps=_POST_EPS)


def _keys(config: Config) -> Keys:
    rotated = [float(kind == "sliding_attention") for kind in config["layer_types"]]
    base = float((config.get("rope_parameters") or {}).get("rope_theta", 500000.0))
    check_config(
        config, post_norm_eps=_POST_EPS, attention_bias=False,
        layer_rope_theta=[x * base for x in rotated],
    )  # fmt: skip
    return (
        llama.keys(config)
        | window_keys(config, 4)
        | {
            "final_logit_softcapping": float32(config["final_logit_softcapping"]),
            "logit_scale": float32(config["output_multiplier"]),
        }
    )


def _change(name: str, x: Array, config: Config) -> Tensors:
    """Rope is on adjacent pairs; norms of layers are differences from 1."""
    if name.endswith("norm.weight") and name != "output_norm.weight":
        return {name: x + x.dtype.type(1)}
    return llama.change(name, x, config)


def _norms(config: Config) -> Tensors:
    """The norms of heads, whose weights are one factor for all queries."""
    n, n_layer = int(config["head_dim"]), int(config["num_hidden_layers"])
    factors = {"q": float(config["qk_scale_factor"]), "k": 1.0}
    norms = {
        f"blk.{i}.attn_{part}_norm.weight": np.full(n, factor, np.float32)
        for i in range(n_layer)
        for part, factor in factors.items()
    }
    return {**rope_factors(config), **norms}


CONVERT = Convert(
    models=("MuseGlimmerForConditionalGeneration",),
    tensors={
        **gemma3.NAMES,
        "model.layers.{i}.self_attn.gate_proj.weight": "blk.{i}.attn_gate.weight",
    },
    other_media=("*vision_*", "*perception_emb_norm*"),
    keys=_keys,
    change=_change,
    extra=_norms,
)
