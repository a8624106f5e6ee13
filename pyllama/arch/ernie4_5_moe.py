"""ERNIE 4.5 with experts: LLaMA's graph, a router with a bias, experts in every n-th layer.

Source: Baidu 2025, "ERNIE 4.5 Technical Report"; llama.cpp, ``llama_model_ernie4_5_moe``.
"""

from __future__ import annotations

from ..graph.tensors import SHARED_EXPERTS
from ..hparams import Key, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config
from . import llama, qwen2moe

NAME = "ernie4_5-moe"

HPARAMS: Values = {
    "n_ff_exp": Key("expert_feed_forward_length"),
    "n_ff_shexp": Key("expert_shared_feed_forward_length", 0),
    "moe_period": Key("interleave_moe_layer_step"),
}

TENSORS = {
    **llama.TENSORS,
    "blk.{i}.exp_probs_b.bias?": ("n_expert",),
    **SHARED_EXPERTS,
}

build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    n_layer, n_ff = int(config["num_hidden_layers"]), int(config["moe_intermediate_size"])
    if config.get("moe_layer_end_index") != -1:
        check_config(config, moe_layer_end_index=n_layer - 1)
    n_shared = int(config["moe_num_shared_experts"])
    keys = base_keys(config, "silu")
    keys |= {
        "expert_count": int(config["moe_num_experts"]),
        "expert_used_count": int(config["moe_k"]),
        "expert_shared_count": n_shared,
        "interleave_moe_layer_step": int(config["moe_layer_interval"]),
        "leading_dense_block_count": int(config["moe_layer_start_index"]),
    }
    if n_shared:
        keys["expert_shared_feed_forward_length"] = n_shared * n_ff
    return keys


CONVERT = Convert(
    models=("Ernie4_5_MoeForCausalLM",),
    tensors={
        **llama.CONVERT.tensors,
        **qwen2moe.ROUTED,
        **qwen2moe.shared("shared_experts"),
        "model.layers.{i}.mlp.moe_statics.e_score_correction_bias": "blk.{i}.exp_probs_b.bias",
    },
    keys=_keys,
    defaults={
        "moe_num_shared_experts": 2,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "rope_theta": 500000.0,
    },
    ignored=(*llama.CONVERT.ignored, "model.mtp_*"),
    prefix="model.",
)
