"""GPT-2: layer norm, learned positions, one matrix for queries, keys and values, GELU.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; llama.cpp,
``llm_build_gpt2``.
"""

from __future__ import annotations

import numpy as np

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.decoder import layer_norm_decoder
from ..graph.tensors import tensors
from ..hparams import Key, Values
from ..mapping.rules import (
    Array,
    Config,
    Convert,
    Keys,
    Tensors,
    base_keys,
    check_config,
    hidden_act,
)

HPARAMS: Values = {
    "norm_eps": Key("attention.layer_norm_epsilon", 1e-5),
    "n_rot": 0,
    "attn_scale": Key("attention.scale", 0.0),
}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.*": ("n_embd",),
        "blk.{i}.attn_qkv.*": ("n_embd", "n_embd_qkv"),
        "blk.{i}.attn_output.*": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.*": ("n_embd",),
        "blk.{i}.ffn_up.*": ("n_embd", "n_ff"),
        "blk.{i}.ffn_down.*": ("n_ff", "n_embd"),
        "output_norm.*": ("n_embd",),
        "position_embd.weight": ("n_embd", "n_ctx_train"),
        "token_embd.weight": ("n_embd", "n_vocab"),
        "output.weight?": ("n_embd", "n_vocab"),
    }
)


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    return layer_norm_decoder(b, "gelu", b.add_positions(b.embed("token_embd.weight")))


def _keys(config: Config) -> Keys:
    check_config(config, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    keys = {
        "feed_forward_length": 4 * int(config["n_embd"]),
        "attention.layer_norm_epsilon": np.float32(1e-5),
    } | base_keys(config)
    if not config.get("scale_attn_weights", True):
        keys["attention.scale"] = 1.0
    return keys | hidden_act(config, "gelu")


def _change(name: str, x: Array, config: Config) -> Tensors:
    return {name: x.T if name.startswith("blk") else x}  # Conv1D: [in, out]; vectors stay


CONVERT = Convert(
    models=("GPT2LMHeadModel",),
    tensors={
        "transformer.wte.weight": "token_embd.weight",
        "transformer.wpe.weight": "position_embd.weight",
        "transformer.h.{i}.ln_1.*": "blk.{i}.attn_norm.*",
        "transformer.h.{i}.attn.c_attn.*": "blk.{i}.attn_qkv.*",
        "transformer.h.{i}.attn.c_proj.*": "blk.{i}.attn_output.*",
        "transformer.h.{i}.ln_2.*": "blk.{i}.ffn_norm.*",
        "transformer.h.{i}.mlp.c_fc.*": "blk.{i}.ffn_up.*",
        "transformer.h.{i}.mlp.c_proj.*": "blk.{i}.ffn_down.*",
        "transformer.ln_f.*": "output_norm.*",
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
    change=_change,
    ignored=("*.attn.bias", "*.attn.masked_bias"),  # the causal mask
    prefix="transformer.",
)
