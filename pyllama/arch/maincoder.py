"""Maincoder: LLaMA with norms of the heads of queries and keys after rope.

Source: Maincode 2025, "Maincoder-1B"; llama.cpp, ``llm_build_maincoder``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.decoder import pre_norm_decoder
from . import llama, qwen2, qwen3

HPARAMS = llama.HPARAMS
TENSORS = qwen3.TENSORS


def _attention(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    q, k, v = b.project_qkv(x, i)
    q = b.rms_norm(b.rope(q, f"Qcur-{i}", i), f"blk.{i}.attn_q_norm", f"Qcur_normed-{i}")
    k = b.rms_norm(b.rope(k, f"Kcur-{i}", i), f"blk.{i}.attn_k_norm", f"Kcur_normed-{i}")
    return b.attention(q, k, v, i)


build_graph = partial(pre_norm_decoder, attention=_attention)

CONVERT = replace(
    qwen3.CONVERT,
    models=("MaincoderForCausalLM",),
    keys=llama.keys,
    defaults={},
    change=qwen2.CONVERT.change,  # rope is on adjacent pairs in checkpoints, too
)
