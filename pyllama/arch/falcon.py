"""Falcon: layer norm, one matrix for q, k and v, GELU, parallel attention and feed-forward.

In 7B both parts read the same norm; in 40B and 180B each has its own norm, and keys are grouped.
The RW models have sequential parts, biases, and ALiBi instead of rope.
Source: Almazrouei et al. 2023, "The Falcon Series of Open Language Models"; llama.cpp,
``llm_build_falcon``.
"""

from __future__ import annotations

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
    Keys,
    Tensors,
    base_keys,
    hidden_act,
    regroup_qkv,
)

HPARAMS: Values = {
    "norm_eps": Key("attention.layer_norm_epsilon", 1e-5),
    "rope_neox": True,
    "max_alibi_bias": Key("attention.max_alibi_bias", 0.0),
    "alibi_scaled": True,
    "parallel_residual": Key("use_parallel_residual", True),
}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.*": ("n_embd",),
        "blk.{i}.attn_norm_2.weight?": ("n_embd",),
        "blk.{i}.attn_norm_2.bias?": ("n_embd",),
        "blk.{i}.attn_qkv.*?": ("n_embd", "n_embd_qkv"),
        "blk.{i}.attn_output.*?": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.*?": ("n_embd_ffn_norm",),
        "blk.{i}.ffn_up.*?": ("n_embd", "n_ff"),
        "blk.{i}.ffn_down.*?": ("n_ff", "n_embd"),
        "output_norm.*": ("n_embd",),
        "token_embd.weight": ("n_embd", "n_vocab"),
        "output.weight?": ("n_embd", "n_vocab"),
    }
)


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        norm = cur = b.layer_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        if f"blk.{i}.attn_norm_2.weight" in b.weights:
            cur = b.layer_norm(inp, f"blk.{i}.attn_norm_2", f"attn_norm_2-{i}")
        cur = b.self_attention(cur, i)  # [n_embd_q, T]
        cur, inp, norm = b.select_outputs(i, cur, inp, norm)
        layer_in = inp  # input of PowerInfer's predictors
        inp = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        if not b.hparams.parallel_residual:
            norm = b.layer_norm(inp, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        inp = ffn(b, norm, i, "gelu_erf", residual=inp, pred_in=layer_in)
    return b.output(b.layer_norm(inp, "output_norm", "result_norm"))


def _kv_heads(config: Config) -> int:
    n_head = int(config.get("num_attention_heads") or config["n_head"])
    if config.get("new_decoder_architecture") or config.get("n_head_kv"):  # n_head_kv: old 40B
        return int(config.get("num_kv_heads") or config.get("n_head_kv") or n_head)
    return 1 if config.get("multi_query", True) else n_head


def _keys(config: Config) -> Keys:
    n_embd = int(config["hidden_size"])
    keys = {
        "context_length": 2048,  # missing in old configs
        "feed_forward_length": 4 * n_embd,
        "attention.layer_norm_epsilon": np.float32(1e-5),
    } | base_keys(config)
    keys["attention.head_count_kv"] = _kv_heads(config)
    if config.get("alibi"):
        keys |= {"attention.max_alibi_bias": np.float32(8), "rope.dimension_count": 0}
    if not (config.get("parallel_attn", True) or config.get("new_decoder_architecture")):
        keys["use_parallel_residual"] = False
    return keys | hidden_act(config, "gelu_erf")


def _change(name: str, x: Array, config: Config) -> Tensors:
    if ".attn_qkv." in name:
        n_head = int(config.get("num_attention_heads") or config["n_head"])
        x = regroup_qkv(x, n_head, _kv_heads(config))
    return {name: x}


CONVERT = Convert(
    models=("FalconForCausalLM", "RWForCausalLM"),
    tensors={
        "transformer.word_embeddings.weight": "token_embd.weight",
        "transformer.h.{i}.input_layernorm.*": "blk.{i}.attn_norm.*",
        "transformer.h.{i}.ln_mlp.*": "blk.{i}.attn_norm.*",
        "transformer.h.{i}.ln_attn.*": "blk.{i}.attn_norm_2.*",
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
