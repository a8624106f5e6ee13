"""Ling 2.0 (Bailing-MoE V2): sigmoid routing by groups, norms of queries and keys, half of rope.

Source: Ling Team 2025, "Every Activation Boosted"; llama.cpp, ``llama_model_bailingmoe2``.
"""

from __future__ import annotations

import numpy as np

from ..hparams import GATINGS, Key, Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, base_keys, check_config, float32
from . import bailingmoe, dots1, llama

HPARAMS: Values = {
    **dots1.HPARAMS,
    "expert_gating": Key("expert_gating_func", type=int),
    "n_ff_shared": Key("expert_shared_feed_forward_length", 0),
    "n_ff_shexp": lambda got: got["n_shared"] * (got["n_ff_shared"] or got["n_ff_exp"]),
}

TENSORS = {  # queries, keys and values may be one matrix (``runtime.loader.qkv_patterns``)
    **dots1.TENSORS,
    "blk.{i}.attn_output.bias?": ("n_embd",),
}

build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    check_config(config, score_function="sigmoid", moe_router_enable_expert_bias=True)
    check_config(config, use_qk_norm=True, use_bias=False)
    n_ff, n_shared = int(config["moe_intermediate_size"]), int(config["num_shared_experts"])
    n_ff_shared = int(config.get("moe_shared_expert_intermediate_size") or n_ff * n_shared)
    return base_keys(config, "silu") | {
        "expert_count": int(config["num_experts"]),
        "expert_group_count": int(config["n_group"]),
        "expert_group_used_count": int(config["topk_group"]),
        "expert_shared_count": n_shared,
        "expert_shared_feed_forward_length": n_ff_shared,
        "expert_gating_func": GATINGS.index("sigmoid"),
        "expert_weights_scale": float32(config["routed_scaling_factor"]),
        "expert_weights_norm": bool(config["norm_topk_prob"]),
        "leading_dense_block_count": int(config["first_k_dense_replace"]),
        "nextn_predict_layers": 0,  # which are left out
    }  # fmt: skip


def _change(name: str, x: Array, config: Config) -> Tensors:
    if name.endswith("exp_probs_b.bias") and "SarvamMoEForCausalLM" in config["architectures"]:
        x = x - x.mean(dtype=np.float32)
    return {name: x}


CONVERT = Convert(
    models=("BailingMoeV2ForCausalLM", "SarvamMoEForCausalLM"),
    tensors={
        **bailingmoe.TENSOR_NAMES,
        "model.layers.{i}.attention.query_layernorm.weight": "blk.{i}.attn_q_norm.weight",
        "model.layers.{i}.attention.key_layernorm.weight": "blk.{i}.attn_k_norm.weight",
        "model.layers.{i}.mlp.gate.expert_bias": "blk.{i}.exp_probs_b.bias",
    },
    keys=_keys,
    change=_change,
    of_class={"SarvamMoEForCausalLM": {"partial_rotary_factor": 1.0}},
    defaults={"partial_rotary_factor": 0.5, "score_function": "sigmoid"},
    prefix="model.",
)
