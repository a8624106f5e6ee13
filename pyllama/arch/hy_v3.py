"""Hy3: Qwen3's attention, sigmoid routing with a bias and shared experts after dense layers.

Source: Tencent 2026, "Hy3"; llama.cpp, ``llama_model_hy_v3``.
"""

from __future__ import annotations

from ..graph.tensors import DEEPSEEK_EXPERTS, without
from ..hparams import BY_ROUTER, GATINGS, SIGMOID_ROUTER, Key, Values
from ..mapping.rules import Config, Convert, Keys, Nextn, base_keys, check_config, float32
from . import exaone_moe, qwen2moe, qwen3

HPARAMS: Values = {
    "rope_neox": True,
    "expert_layers": BY_ROUTER,  # llama.cpp's files have no key
    "n_ff_shexp": Key("expert_shared_feed_forward_length", 0),
    **SIGMOID_ROUTER,
}

TENSORS = {
    **qwen3.TENSORS,
    **without(DEEPSEEK_EXPERTS, "exp_probs_b"),
    "blk.{i}.exp_probs_b?": ("n_expert",),
}

MTP = Nextn(names={"final_layernorm.": "shared_head.norm."})

build_graph = qwen3.build_graph


def _keys(config: Config) -> Keys:
    check_config(config, mlp_bias=False)
    n_exp = int(config["moe_intermediate_size"])
    return base_keys(config, "silu") | {
        "leading_dense_block_count": exaone_moe.dense_lead(config),
        "expert_shared_feed_forward_length": n_exp * int(config["num_shared_experts"]),
        "expert_gating_func": GATINGS.index("sigmoid"),
        "expert_weights_scale": float32(config["router_scaling_factor"]),
        "expert_weights_norm": bool(config.get("route_norm", True)),
    }


CONVERT = Convert(
    models=("HYV3ForCausalLM",),
    tensors={
        **qwen3.CONVERT.tensors,
        **qwen2moe.ROUTED,
        **qwen2moe.shared("shared_mlp"),
        **qwen2moe.shared("shared_experts"),  # of transformers' modules, so of adapters
        "model.layers.{i}.mlp.router.gate.weight": "blk.{i}.ffn_gate_inp.weight",
        "model.layers.{i}.mlp.expert_bias": "blk.{i}.exp_probs_b",
    },
    keys=_keys,
    defaults={
        "head_dim": 128,
        "num_shared_experts": 1,
        "rope_theta": 11158840.0,
        "router_scaling_factor": 1.0,
    },
)
