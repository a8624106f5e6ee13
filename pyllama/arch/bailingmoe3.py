"""Ling 3.0 (Bailing-MoE V3): Kimi's delta attention in most layers, latent attention in others.

Source: llama.cpp, ``llama_model_bailingmoe3``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from pyggml.tensor import Tensor

from ..graph import hybrid
from ..graph.attention import mla
from ..graph.attention.factors import attention_gate
from ..graph.builder import GraphBuilder
from ..graph.delta_net import kimi_delta
from ..graph.dense import SWIGLU_LIMITS
from ..graph.tensors import only_in, without
from ..hparams import GATINGS, Got, Key, Values
from ..mapping.rules import (
    Array,
    Config,
    Convert,
    Keys,
    Nextn,
    Tensors,
    base_keys,
    check_config,
    float32,
)
from . import bailingmoe, deepseek2, kimi_linear


def _n_ff_shexp(got: Got) -> int:
    return int(got["n_ff_shared"] or got["n_ff_exp"] * max(got["n_shared"], 1))


HPARAMS: Values = {
    **without(kimi_linear.HPARAMS, "nope_layers"),
    **SWIGLU_LIMITS,
    "limit_after": True,
    "lowest_decay": Key("kda.gate_lower_bound", type=float),
    "n_ff_shared": Key("expert_shared_feed_forward_length", 0),
    "n_ff_shexp": _n_ff_shexp,
    "expert_gating": Key("expert_gating_func", type=int),
    "expert_weights_norm": Key("expert_weights_norm", False),
}

TENSORS = {
    **without(kimi_linear.TENSORS, "ssm_f_", "ssm_g_"),
    **only_in(
        "recurs",
        {
            "blk.{i}.ssm_f_a.weight": ("n_embd", "n_kda_all"),
            "blk.{i}.ssm_g_a.weight": ("n_embd", "n_kda_all"),
        },
    ),
    **only_in("attends", {"blk.{i}.attn_gate.weight": ("n_embd", "n_head")}),
}


MTP = Nextn(layer=lambda config, i: {"swiglu_clamp_exp": 0.0, "swiglu_clamp_shexp": 0.0})


def _latent(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    out = attention_gate(b, mla.latent_attention(b, x, i), x, i, "sigmoid")
    return b.linear(out, f"blk.{i}.attn_output", f"attn_out-{i}")


build_graph = partial(hybrid.decoder, mixer=hybrid.attention_or(kimi_delta, _latent))


def _attends(config: Config, i: int) -> bool:
    n_layer, group = int(config["num_hidden_layers"]), int(config["layer_group_size"])
    return (i + 1) % group == 0 or i >= n_layer // group * group


def _keys(config: Config) -> Keys:
    check_config(config, no_kda_lora=True, kda_safe_gate=True)
    check_config(config, gated_attention_proj_granularity_type="head_wise")
    n_layer = int(config["num_hidden_layers"])
    keys = base_keys(config) | deepseek2.absorbed_keys(config)
    for key, name in (
        ("swiglu_clamp_exp", "expert_swiglu_limit_list"),
        ("swiglu_clamp_shexp", "share_expert_swiglu_limit_list"),
    ):
        if config.get(name) is not None:
            limits = [float(x or 0) for x in config[name][:n_layer]]
            keys[key] = limits + [0.0] * (n_layer - len(limits))
    return keys | {
        "attention.head_count_kv": [int(_attends(config, i)) for i in range(n_layer)],
        "ssm.conv_kernel": int(config["short_conv_kernel_size"]),
        "kda.head_dim": int(config["head_dim"]),
        "kda.safe_gate": True,
        "kda.gate_lower_bound": float32(config["kda_lower_bound"]),
        "expert_group_count": int(config["n_group"]),
        "expert_group_used_count": int(config["topk_group"]),
        "expert_shared_feed_forward_length": int(config["moe_shared_expert_intermediate_size"]),
        "expert_shared_count": int(config["num_shared_experts"]),
        "leading_dense_block_count": int(config["first_k_dense_replace"]),
        "expert_gating_func": GATINGS.index("sigmoid"),
        "expert_weights_scale": float32(config["routed_scaling_factor"]),
        "expert_weights_norm": bool(config["norm_topk_prob"]),
    }


def _change(name: str, x: Array, config: Config) -> Tensors:
    if name.endswith("ssm_a"):
        return {name: np.exp(x).reshape(-1, 1)}
    if "ssm_conv1d" in name:
        return {name: x.reshape(1, x.shape[0], 1, x.shape[-1])}
    return deepseek2.change_latent(name, x, config)


_L = "model.layers.{i}.attention"
CONVERT = Convert(
    models=("BailingMoeV3ForCausalLM",),
    tensors={
        **bailingmoe.TENSOR_NAMES,
        "model.layers.{i}.mlp.gate.expert_bias": "blk.{i}.exp_probs_b.bias",
        **{
            k.replace(".self_attn.", ".attention."): x
            for k, x in kimi_linear.CONVERT.tensors.items()
            if ".self_attn." in k and "ssm_f" not in x and "ssm_g" not in x
        },
        f"{_L}.f_proj.weight": "blk.{i}.ssm_f_a.weight",
        f"{_L}.g_proj.weight": kimi_linear.GATE,
        f"{_L}.dense.weight": "blk.{i}.attn_output.weight",
    },
    rename=partial(kimi_linear.gate_name, attends=_attends, delta="ssm_g_a"),
    keys=_keys,
    change=_change,
)
