"""DeciLM and Llama-Nemotron: LLaMA whose layers differ, or lack attention or a feed-forward part.

Source: DeciAI 2023, "DeciLM-7B"; Bercovich et al. 2024, "Puzzle: Distillation-Based NAS for
Inference-Optimized LLMs"; llama.cpp, ``llm_build_deci``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pyggml.tensor import Tensor

from ..graph.builder import ROPE_FACTORS, GraphBuilder
from ..graph.ffn import ffn
from ..graph.tensors import GATED_FFN, OUTPUT
from ..hparams import Got, Values
from ..mapping.rules import Array, Config, Keys, Tensors, interleave_rope
from . import llama


def _where(name: str) -> Callable[[Got], tuple[int, ...]]:
    """Columns of the embedding in the layers whose ``name`` is not 0."""
    return lambda got: tuple(got["n_embd"] if n else 0 for n in got[name])


HPARAMS: Values = {
    "empty_layers": True,
    "n_embd_attn": _where("n_head_arr"),
    "n_embd_heads": _where("n_head_kv_arr"),  # 0 with heads of queries: one matrix for all
    "n_embd_ffn": _where("n_ff_arr"),
}

TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd_attn",),
    "blk.{i}.attn_q.weight": ("n_embd_heads", "n_embd_q"),
    "blk.{i}.attn_k.weight": ("n_embd", "n_embd_k"),
    "blk.{i}.attn_v.weight": ("n_embd", "n_embd_v"),
    "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
    "blk.{i}.ffn_norm.weight": ("n_embd_ffn",),
    **GATED_FFN,
    **ROPE_FACTORS,
    **OUTPUT,
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        cur, hp = inp, b.hparams.of_layer(i)
        if hp.n_head:
            cur = b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        if hp.n_head_kv:
            cur = b.self_attention(cur, i)
        cur, inp = b.select_outputs(i, cur, inp)
        if hp.n_head:
            inp = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        if hp.n_ff:
            cur = b.rms_norm(inp, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
            inp = b.layer_output(ffn(b, cur, i, "silu", residual=inp), i)
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


def _keys(config: Config) -> Keys:
    keys, n_head = llama.keys(config), int(config["num_attention_heads"])
    if config.get("num_key_value_heads_per_layer"):  # DeciLM-7B
        heads_kv = np.array(config["num_key_value_heads_per_layer"], np.int32)
        return keys | {"attention.head_count_kv": heads_kv}
    blocks = config.get("block_configs")
    if not blocks:
        return keys
    groups = [block["attention"]["n_heads_in_group"] for block in blocks]
    heads = [
        n_head if group or block["attention"]["replace_with_linear"] else 0
        for group, block in zip(groups, blocks, strict=True)
    ]
    n_ff = [
        int(2 * (block["ffn"]["ffn_mult"] or 0) * config["hidden_size"] / 3) for block in blocks
    ]
    return keys | {
        "attention.head_count": np.array(heads, np.int32),
        "attention.head_count_kv": np.array([n_head // g if g else 0 for g in groups], np.int32),
        "feed_forward_length": np.array([-(-n // 256) * 256 for n in n_ff], np.int32),
    }


def _change(name: str, x: Array, config: Config) -> Tensors:
    head_dim = int(config["hidden_size"]) // int(config["num_attention_heads"])
    rotated = name.split(".")[-2] in ("attn_q", "attn_k")
    return {name: interleave_rope(x, len(x) // head_dim) if rotated else x}


CONVERT = replace(
    llama.CONVERT,
    models=("DeciLMForCausalLM",),
    tensors={
        **llama.CONVERT.tensors,
        "model.layers.{i}.self_attn.linear_attn.weight": "blk.{i}.attn_output.weight",
    },
    keys=_keys,
    change=_change,
)
