"""openPangu-Embedded: Qwen2 with a bias on the attention output.

Source: Huawei 2025, "Pangu Embedded: An Efficient Dual-system LLM Reasoner"; llama.cpp,
``llm_build_pangu_embedded``.
"""

from __future__ import annotations

from dataclasses import replace

from . import llama, qwen2

NAME = "pangu-embedded"
HPARAMS = qwen2.HPARAMS
TENSORS = {**qwen2.TENSORS, "blk.{i}.attn_output.bias": ("n_embd",)}
build_graph = llama.build_graph
CONVERT = replace(
    qwen2.CONVERT,
    models=("PanguEmbeddedForCausalLM",),
    tensors={
        **qwen2.CONVERT.tensors,
        "model.layers.{i}.self_attn.o_proj.*": "blk.{i}.attn_output.*",
    },
    keys=llama.keys,
)
