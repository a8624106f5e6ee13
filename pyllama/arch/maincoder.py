"""Maincoder: LLaMA with norms of the heads of queries and keys after rope.

Source: Maincode 2025, "Maincoder-1B"; llama.cpp, ``llm_build_maincoder``.
"""

from __future__ import annotations

from dataclasses import replace

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.ffn import ffn
from . import llama, qwen2, qwen3

HPARAMS = llama.HPARAMS
TENSORS = qwen3.TENSORS


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        cur = b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        q, k, v = b.project_qkv(cur, i)
        q = b.rms_norm(b.rope(q, f"Qcur-{i}", i), f"blk.{i}.attn_q_norm", f"Qcur_normed-{i}")
        k = b.rms_norm(b.rope(k, f"Kcur-{i}", i), f"blk.{i}.attn_k_norm", f"Kcur_normed-{i}")
        cur = b.attention(q, k, v, i)
        cur, inp = b.select_outputs(i, cur, inp)
        inp = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        cur = b.rms_norm(inp, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        inp = b.layer_output(ffn(b, cur, i, "silu", residual=inp), i)
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


CONVERT = replace(
    qwen3.CONVERT,
    models=("MaincoderForCausalLM",),
    keys=llama.keys,
    change=qwen2.CONVERT.change,  # rope is on adjacent pairs in checkpoints, too
)
