"""InternLM2: LLaMA's graph; checkpoints have one matrix for queries, keys and values.

Source: Cai et al. 2024, "InternLM2 Technical Report"; llama.cpp, ``llm_build_internlm2``.
"""

from __future__ import annotations

from dataclasses import replace

from ..mapping.rules import Array, Config, Tensors, kv_heads, regroup_qkv
from . import llama

HPARAMS = llama.HPARAMS
TENSORS = llama.TENSORS
build_graph = llama.build_graph


def _change(name: str, x: Array, config: Config) -> Tensors:
    if ".attn_qkv." not in name:
        return {name: x}
    grouped = regroup_qkv(x, int(config["num_attention_heads"]), kv_heads(config))
    return llama.change_fused(name, grouped, config)


CONVERT = replace(
    llama.CONVERT,
    models=("InternLM2ForCausalLM",),
    tensors={
        "model.tok_embeddings.weight": "token_embd.weight",
        "model.layers.{i}.attention_norm.weight": "blk.{i}.attn_norm.weight",
        "model.layers.{i}.attention.wqkv.*": "blk.{i}.attn_qkv.*",
        "model.layers.{i}.attention.wo.*": "blk.{i}.attn_output.*",
        "model.layers.{i}.ffn_norm.weight": "blk.{i}.ffn_norm.weight",
        "model.layers.{i}.feed_forward.w1.weight": "blk.{i}.ffn_gate.weight",
        "model.layers.{i}.feed_forward.w3.weight": "blk.{i}.ffn_up.weight",
        "model.layers.{i}.feed_forward.w2.weight": "blk.{i}.ffn_down.weight",
        "model.norm.weight": "output_norm.weight",
        "output.weight": "output.weight",
    },
    change=_change,
)
