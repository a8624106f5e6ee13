"""Ling (Bailing-MoE): LLaMA's graph with experts and shared ones in every layer.

Source: Ling Team 2025, "Every FLOP Counts"; llama.cpp, ``llama_model_bailingmoe``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..graph.tensors import SHARED_EXPERTS
from ..hparams import SHARED_SIZES, Key, Values
from ..mapping.rules import HF_MLP, Array, Config, Keys, Tensors, check_config, float32
from . import llama, qwen2moe

HPARAMS: Values = {
    **SHARED_SIZES,
    "n_shared": Key("expert_shared_count"),
    "expert_weights_norm": Key("expert_weights_norm", False),
}

TENSORS = {**llama.TENSORS, **SHARED_EXPERTS}

build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    check_config(config, first_k_dense_replace=0, multi_gate=False, moe_router_topk_scaling=None)
    return llama.keys(config) | {
        "expert_shared_count": int(config["num_shared_experts"]),
        "expert_weights_scale": float32(1),
        "expert_weights_norm": bool(config["norm_topk_prob"]),
        "leading_dense_block_count": 0,
    }


def _change(name: str, x: Array, config: Config) -> Tensors:
    if name == "output.weight" and config.get("norm_head"):  # of each column of the matrix
        return {name: x / (np.sqrt(np.square(x).sum(0, keepdims=True)) + np.float32(1e-7))}
    return llama.change_fused(name, x, config) if ".attn_qkv." in name else {name: x}


TENSOR_NAMES = {
    "model.word_embeddings.weight": "token_embd.weight",
    "model.layers.{i}.input_layernorm.weight": "blk.{i}.attn_norm.weight",
    "model.layers.{i}.attention.query_key_value.*": "blk.{i}.attn_qkv.*",
    "model.layers.{i}.attention.dense.*": "blk.{i}.attn_output.*",
    "model.layers.{i}.post_attention_layernorm.weight": "blk.{i}.ffn_norm.weight",
    **HF_MLP,
    **qwen2moe.ROUTED,
    **qwen2moe.shared("shared_experts"),
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}

CONVERT = replace(
    llama.CONVERT,
    models=("BailingMoeForCausalLM",),
    tensors=TENSOR_NAMES,
    keys=_keys,
    change=_change,
)
