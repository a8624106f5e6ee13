"""Jais: GPT-2's layers with SwiGLU and ALiBi; scores are divided by the size of a head.

Source: Sengupta et al. 2023, "Jais and Jais-chat"; llama.cpp, ``llm_build_jais``.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.tensors import tensors, without
from ..hparams import Key, Values
from ..mapping.rules import Array, Config, Keys, Tensors, base_keys, check_config, float32
from . import gpt2, orion

HPARAMS: Values = {
    "norm_eps": Key("attention.layer_norm_epsilon"),
    "n_rot": 0,
    "max_alibi_bias": Key("attention.max_alibi_bias", 0.0),
    "attn_scale": lambda got: 1 / got["head_dim_arr"][0],
}

TENSORS = tensors(
    {
        **without(gpt2.TENSORS, "position_embd"),
        "blk.{i}.ffn_gate.*": ("n_embd", "n_ff"),
    }
)

build_graph = orion.build_graph


def _keys(config: Config) -> Keys:
    check_config(
        config, activation_function="swiglu", position_embedding_type="alibi",
        scale_qk_dot_by_d=True, mup_scale_qk_dot_by_d=True, alibi_scaling=None,
    )  # fmt: skip
    return base_keys(config) | {"attention.max_alibi_bias": float32(8)}


def _change(name: str, x: Array, config: Config) -> Tensors:
    """Tensors transposed, and the scales of embeddings and logits multiplied into them."""
    if name == "token_embd.weight":
        scale = config.get("mup_embeddings_scale", config.get("embeddings_scale"))
        x = x * float32(scale)
    elif name == "output.weight" and "mup_output_alpha" in config:
        x = x * float32(config["mup_output_alpha"] * config["mup_width_scale"])
    elif name == "output.weight":
        x = x * float32(config["width_scale"])
    return gpt2.CONVERT.change(name, x, config)


CONVERT = replace(
    gpt2.CONVERT,
    models=("JAISLMHeadModel",),
    tensors={
        **without(gpt2.CONVERT.tensors, "wpe"),
        "transformer.h.{i}.mlp.c_fc2.*": "blk.{i}.ffn_gate.*",
    },
    keys=_keys,
    change=_change,
    ignored=("*.attn.bias", "*.attn.masked_bias", "*.relative_pe.slopes"),
)
