"""BLOOM: layer norm also after the embedding, ALiBi, one matrix for q, k and v, GELU.

Source: BigScience 2022, "BLOOM: A 176B-Parameter Open-Access Multilingual Language Model";
llama.cpp, ``llm_build_bloom``.
"""

from __future__ import annotations

import numpy as np

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.decoder import layer_norm_decoder
from ..graph.tensors import tensors, without
from ..hparams import Key, Values
from ..mapping.rules import (
    Array,
    Config,
    Convert,
    Keys,
    Tensors,
    base_keys,
    check_config,
    regroup_qkv,
)
from . import gpt2

HPARAMS: Values = {
    "norm_eps": Key("attention.layer_norm_epsilon", 1e-5),
    "n_rot": 0,
    "max_alibi_bias": 8.0,
}

TENSORS = {
    **tensors({"token_embd_norm.*": ("n_embd",)}),
    **without(gpt2.TENSORS, "position_embd"),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    inp = b.layer_norm(b.embed("token_embd.weight"), "token_embd_norm", "inp_norm")
    return layer_norm_decoder(b, "gelu", inp)


def _keys(config: Config) -> Keys:
    check_config(config, apply_residual_connection_post_layernorm=False)
    n_embd = config.get("hidden_size") or config["n_embed"]
    return {
        "context_length": int(config.get("seq_length") or 2048),  # ALiBi has no limit of its own
        "embedding_length": int(n_embd),
        "feed_forward_length": 4 * int(n_embd),
        "attention.layer_norm_epsilon": np.float32(1e-5),
    } | base_keys(config)


def _change(name: str, x: Array, config: Config) -> Tensors:
    if ".attn_qkv." in name:
        n_head = int(config.get("num_attention_heads") or config["n_head"])
        x = regroup_qkv(x, n_head, n_head)
    return {name: x}


CONVERT = Convert(
    models=("BloomForCausalLM", "BloomModel"),
    tensors={
        "transformer.word_embeddings.weight": "token_embd.weight",
        "transformer.word_embeddings_layernorm.*": "token_embd_norm.*",
        "transformer.h.{i}.input_layernorm.*": "blk.{i}.attn_norm.*",
        "transformer.h.{i}.self_attention.query_key_value.*": "blk.{i}.attn_qkv.*",
        "transformer.h.{i}.self_attention.dense.*": "blk.{i}.attn_output.*",
        "transformer.h.{i}.post_attention_layernorm.*": "blk.{i}.ffn_norm.*",
        "transformer.h.{i}.mlp.dense_h_to_4h.*": "blk.{i}.ffn_up.*",
        "transformer.h.{i}.mlp.dense_4h_to_h.*": "blk.{i}.ffn_down.*",
        "transformer.ln_f.*": "output_norm.*",
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
    change=_change,
    prefix="transformer.",
)
