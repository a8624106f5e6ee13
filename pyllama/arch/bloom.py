"""BLOOM: layer norm also after the embedding, ALiBi, one matrix for q, k and v, GELU.

Source: BigScience 2022, "BLOOM: A 176B-Parameter Open-Access Multilingual Language Model";
llama.cpp, ``llm_build_bloom``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.ffn import ffn
from ..graph.tensors import tensors
from ..hparams import Key, Values
from ..mapping.rules import (
    Array,
    Config,
    Convert,
    Tensors,
    base_keys,
    check_config,
    regroup_qkv,
)

HPARAMS: Values = {
    "norm_eps": Key("attention.layer_norm_epsilon", 1e-5),
    "n_rot": 0,
    "max_alibi_bias": 8.0,
}

TENSORS = tensors(
    {
        "token_embd_norm.*": ("n_embd",),
        "blk.{i}.attn_norm.*": ("n_embd",),
        "blk.{i}.attn_qkv.*": ("n_embd", "n_embd_qkv"),
        "blk.{i}.attn_output.*": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.*": ("n_embd",),
        "blk.{i}.ffn_up.*": ("n_embd", "n_ff"),
        "blk.{i}.ffn_down.*": ("n_ff", "n_embd"),
        "output_norm.*": ("n_embd",),
        "token_embd.weight": ("n_embd", "n_vocab"),
        "output.weight?": ("n_embd", "n_vocab"),
    }
)


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    n_layer = b.hparams.n_layer
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    inp = b.layer_norm(inp, "token_embd_norm", "inp_norm")
    for i in range(n_layer):
        cur = b.layer_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        cur = b.attention(*b.qkv(cur, i), i)  # [n_embd_q, T]
        if i == n_layer - 1:
            cur, inp = b.select_outputs(cur), b.select_outputs(inp)
        inp = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        cur = b.layer_norm(inp, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        inp = ffn(b, cur, i, "gelu", residual=inp)
    return b.output(b.layer_norm(inp, "output_norm", "result_norm"))


def _keys(config: Config) -> dict[str, Any]:
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
