"""Kimi-Linear: Kimi's delta attention in most layers, latent attention without positions in others.

Source: Kimi Team 2025, "Kimi Linear"; llama.cpp, ``llama_model_kimi_linear``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pyggml.tensor import Tensor

from ..graph import hybrid
from ..graph.attention import mla
from ..graph.builder import GraphBuilder
from ..graph.delta_net import KIMI_DELTA, KIMI_DELTA_TENSORS, kimi_delta, kimi_states_of
from ..graph.tensors import DEEPSEEK_EXPERTS, GATED_FFN, OUTPUT, only_in
from ..hparams import GATINGS, SHARED_SIZES, Got, Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, base_keys, check_config, float32
from . import deepseek2, qwen2moe

NAME = "kimi-linear"


def _by_kind(latent: str) -> Any:
    """Columns of a matrix that layers of both kinds have, of latent attention ``latent`` a head."""
    return lambda got: tuple(
        got["n_kda_all"] if recurs else got["n_head_arr"][0] * got[latent]
        for recurs in got["recurs"]
    )


def _columns_of_values(got: Got) -> tuple[int, ...]:
    """Files of absorbed latent attention may have other ones, which nothing uses."""
    n = got["n_lora_kv"] if got["n_key_mla"] else got["head_dim_v_arr"][0]
    return (n,) * int(got["n_layer"])


HPARAMS: Values = {
    "head_dim_v_arr": _columns_of_values,
    **mla.HPARAMS,
    **KIMI_DELTA,
    **hybrid.KINDS,
    "nope_layers": lambda got: (True,) * got["n_layer"],
    "states": hybrid.states_where_recurrent(kimi_states_of),
    "n_q": _by_kind("n_key_direct"),
    "n_out": _by_kind("n_value"),
    **SHARED_SIZES,
}

TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd",),
    **only_in("attends", mla.TENSORS),
    **only_in("recurs", KIMI_DELTA_TENSORS),
    "blk.{i}.attn_q.weight": ("n_embd", "n_q"),
    "blk.{i}.attn_output.weight": ("n_out", "n_embd"),
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    **GATED_FFN,
    **DEEPSEEK_EXPERTS,
    **OUTPUT,
}


def latent(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """Latent attention from a layer's normed input to its output projection.

    Shape:
        x [n_embd, T] -> the same
    """
    out = mla.latent_attention(b, x, i)
    return b.linear(out, f"blk.{i}.attn_output", f"attn_out-{i}")


build_graph = partial(hybrid.decoder, mixer=hybrid.attention_or(kimi_delta, latent))


def is_k3(config: Config) -> bool:
    """Whether it is a Kimi-K3, whose text model has the same class."""
    return config.get("hidden_act") == "situ"


def attends(config: Config, i: int) -> bool:
    """Whether layer ``i`` (from 0) has attention."""
    return i + 1 in config["linear_attn_config"]["full_attn_layers"]


def _keys(config: Config) -> Keys:
    linear, n_layer = config["linear_attn_config"], int(config["num_hidden_layers"])
    check_config(config, moe_layer_freq=1, moe_renormalize=True, num_expert_group=1)
    check_config(linear, num_heads=config["num_attention_heads"])
    gating = config.get("moe_router_activation_func") or "sigmoid"
    keys = base_keys(config) | deepseek2.absorbed_keys(config)
    if config.get("topk_group"):
        keys["expert_group_used_count"] = int(config["topk_group"])
    return keys | {
        "context_length": int(config.get("model_max_length") or keys["context_length"]),
        "attention.head_count_kv": [int(attends(config, i)) for i in range(n_layer)],
        "ssm.conv_kernel": int(linear["short_conv_kernel_size"]),
        "kda.head_dim": int(linear["head_dim"]),
        "expert_used_count": int(config["num_experts_per_token"]),
        "expert_shared_count": int(config["num_shared_experts"]),
        "leading_dense_block_count": int(config["first_k_dense_replace"]),
        "expert_gating_func": GATINGS.index(gating),
        "expert_weights_scale": float32(config["routed_scaling_factor"]),
    }


def _change(name: str, x: Array, config: Config) -> Tensors:
    """``A`` from its logarithm; convolutions in four dimensions, as llama.cpp's files have them."""
    if name.endswith("ssm_a"):
        return {name: -np.exp(x)}
    if "ssm_conv1d" in name:
        return {name: x.reshape(1, x.shape[0], 1, x.shape[-1])}
    return deepseek2.change_latent(name, x, config)


GATE = "blk.{i}.gate"  # of layers of both kinds, in checkpoints that call them alike


def gate_name(name: str, config: Config, attends: Callable[[Config, int], bool], delta: str) -> str:
    """The GGUF name of a tensor, of ``GATE`` by the kind of its layer.

    Args:
        attends: whether a layer has attention.
        delta: the name in the others.
    """
    _, layer, part = (*name.split(".", 2), "")[:3]
    if part != "gate":
        return name
    return f"blk.{layer}.{'attn_gate' if attends(config, int(layer)) else delta}.weight"


_ATTENTION, _MOE = "model.layers.{i}.self_attn", "model.layers.{i}.block_sparse_moe"
CONVERT = Convert(
    models=("KimiLinearForCausalLM", "KimiLinearModel"),
    accepts=lambda config: not is_k3(config),
    tensors={
        **deepseek2.DENSE,
        **{f"{_ATTENTION}.{p}_proj.weight": f"blk.{{i}}.attn_{p}.weight" for p in "kv"},
        **{f"{_ATTENTION}.{p}_conv1d.weight": f"blk.{{i}}.ssm_conv1d_{p}.weight" for p in "qkv"},
        **{
            f"{_ATTENTION}.{p}_proj.weight": f"blk.{{i}}.ssm_{p}.weight"
            for p in ("f_a", "f_b", "g_a", "g_b")
        },
        f"{_ATTENTION}.b_proj.weight": "blk.{i}.ssm_beta.weight",
        f"{_ATTENTION}.A_log": "blk.{i}.ssm_a",
        f"{_ATTENTION}.dt_bias": "blk.{i}.ssm_dt.bias",
        f"{_ATTENTION}.o_norm.weight": "blk.{i}.ssm_norm.weight",
        f"{_MOE}.gate.weight": "blk.{i}.ffn_gate_inp.weight",
        f"{_MOE}.gate.e_score_correction_bias": "blk.{i}.exp_probs_b.bias",
        f"{_MOE}.experts.{{e}}.w1.weight": "blk.{i}.ffn_gate_exps.weight",
        f"{_MOE}.experts.{{e}}.w2.weight": "blk.{i}.ffn_down_exps.weight",
        f"{_MOE}.experts.{{e}}.w3.weight": "blk.{i}.ffn_up_exps.weight",
        # of transformers' modules, so of adapters
        **qwen2moe.shared("shared_experts"),
        **{
            f"{_ATTENTION}.forget_gate.f_{p}_proj.weight": f"blk.{{i}}.ssm_f_{p}.weight"
            for p in "ab"
        },
        **{  # of dense layers, in files that transformers writes; else in ``mlp``
            f"{_MOE}.{p}_proj.weight": f"blk.{{i}}.ffn_{p}.weight" for p in ("gate", "up", "down")
        },
        **{
            f"{_MOE}.shared_experts.{p}_proj.weight": f"blk.{{i}}.ffn_{p}_shexp.weight"
            for p in ("gate", "up", "down")
        },
    },
    keys=_keys,
    change=_change,
)
