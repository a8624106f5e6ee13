"""Qwen3: LLaMA's graph with norms of the queries and keys of each head.

Scores of rerankers are probabilities.
Source: Yang et al. 2025, "Qwen3 Technical Report"; llama.cpp, ``llm_build_qwen3``.
"""

from __future__ import annotations

from ..convert.mapping import Convert
from ..hparams import Values
from . import qwen2

HPARAMS: Values = {"rope_neox": True, "softmax_scores": True}

TENSORS = {
    **qwen2.TENSORS,
    "blk.{i}.attn_q_norm.weight": ("head_dim",),
    "blk.{i}.attn_k_norm.weight": ("head_dim",),
    "blk.{i}.attn_output.bias?": ("n_embd",),
}


build_graph = qwen2.build_graph

CONVERT = Convert(
    models=("Qwen3ForCausalLM",),
    tensors={
        **qwen2.CONVERT.tensors,
        "model.layers.{i}.self_attn.o_proj.*": "blk.{i}.attn_output.*",
        "model.layers.{i}.self_attn.q_norm.weight": "blk.{i}.attn_q_norm.weight",
        "model.layers.{i}.self_attn.k_norm.weight": "blk.{i}.attn_k_norm.weight",
    },
    keys=qwen2.CONVERT.keys,
)
