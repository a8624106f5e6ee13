"""OLMo: layer norms without weights, optionally clamped queries, keys and values, SwiGLU.

Source: Groeneveld et al. 2024, "OLMo: Accelerating the Science of Language Models"; llama.cpp,
``llm_build_olmo``.
"""

from __future__ import annotations

from dataclasses import replace

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.builder import ROPE_FACTORS, GraphBuilder
from ..graph.ffn import ffn
from ..graph.tensors import EXPERTS, without
from ..hparams import Key, Values
from ..mapping.rules import Config, Keys, base_keys, float32
from . import llama

HPARAMS: Values = {
    "norm_eps": Key("attention.layer_norm_epsilon"),
    "clamp_kqv": Key("attention.clamp_kqv", 0.0),
}

TENSORS = without(llama.TENSORS, *EXPERTS, *ROPE_FACTORS, "_norm")


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    n_layer, eps = b.hparams.n_layer, b.hparams.norm_eps
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(n_layer):
        cur = ops.norm(b.ctx, inp, eps).set_name(f"attn_norm-{i}")
        cur = b.self_attention(cur, i)
        cur, inp = b.select_outputs(i, cur, inp)
        inp = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        cur = ops.norm(b.ctx, inp, eps).set_name(f"ffn_norm-{i}")
        inp = b.layer_output(ffn(b, cur, i, "silu", residual=inp), i)
    return b.output(ops.norm(b.ctx, inp, eps).set_name("result_norm"))


def _keys(config: Config) -> Keys:
    keys = base_keys(config, "silu")
    if config.get("clip_qkv") is not None:
        keys["attention.clamp_kqv"] = float32(config["clip_qkv"])
    return {**keys, "attention.layer_norm_epsilon": float32(1e-5)}


CONVERT = replace(llama.CONVERT, models=("OlmoForCausalLM", "OLMoForCausalLM"), keys=_keys)
