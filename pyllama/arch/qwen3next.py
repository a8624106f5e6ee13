"""Qwen3-Next: gated delta nets, attention with gates in every fourth layer, and experts.

Source: Qwen Team 2025, "Qwen3-Next"; llama.cpp, ``llama_model_qwen3next``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..graph import hybrid
from ..graph.attention.factors import attention_of_gated_queries
from ..graph.builder import ROPE_FACTORS
from ..graph.delta_net import DELTA_NET, DELTA_NET_TENSORS, delta_net, states_of
from ..graph.tensors import EXPERTS, OUTPUT, SHARED_EXPERTS, only_in
from ..hparams import Got, Key, Values
from ..mapping.rules import Array, Config, Convert, Keys, Nextn, Tensors, base_keys, check_config
from . import qwen2moe, qwen3

_NOT_IN_FILE = 2


def _n_head_kv(got: Got) -> tuple[int, ...]:
    """Heads of keys of each layer, 0 in those with a delta net."""
    every = max(got["attention_interval"], 1)
    recurs = [
        (i + 1) % every != 0 if listed == _NOT_IN_FILE else listed
        for i, listed in enumerate(got["recurrent_layers"])
    ]
    return tuple(0 if r else n for r, n in zip(recurs, got["n_head_kv_arr"], strict=True))


MIXERS: Values = {  # of Qwen3.5, too
    **DELTA_NET,
    "rope_neox": True,
    "recurrent_layers": Key("attention.recurrent_layers", _NOT_IN_FILE, tuple),
    "attention_interval": Key("full_attention_interval", 4),
    "n_head_kv_arr": _n_head_kv,
    **hybrid.KINDS,
    "states": hybrid.states_where_recurrent(states_of),
}
ALL_EXPERTS: Values = {
    "n_ff_exp": Key("expert_feed_forward_length"),
    "n_ff_shexp": Key("expert_shared_feed_forward_length"),
}
HPARAMS: Values = {**MIXERS, **ALL_EXPERTS}

MIXER_TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd",),
    **only_in(
        "attends",
        {
            "blk.{i}.attn_q.weight": ("n_embd", "2*n_embd_q"),
            "blk.{i}.attn_q_norm.weight": ("head_dim",),
            "blk.{i}.attn_k.weight": ("n_embd", "n_embd_k"),
            "blk.{i}.attn_k_norm.weight": ("head_dim",),
            "blk.{i}.attn_v.weight": ("n_embd", "n_embd_v"),
            "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
        },
    ),
    **only_in("recurs", DELTA_NET_TENSORS),
    "blk.{i}.post_attention_norm.weight": ("n_embd",),
    **ROPE_FACTORS,
}
EXPERT_TENSORS = {
    **EXPERTS,
    **SHARED_EXPERTS,
    "blk.{i}.ffn_gate_inp_shexp.weight": ("n_embd",),
}

TENSORS = {
    **MIXER_TENSORS,
    "blk.{i}.ssm_ba.weight": ("recurs*n_embd", "2*dt_rank"),
    **EXPERT_TENSORS,
    **OUTPUT,
}


build_graph = partial(
    hybrid.decoder,
    mixer=hybrid.attention_or(delta_net, attention_of_gated_queries),
    ffn_norm="post_attention_norm",
)


# of config.json, of Qwen3.5 too
DEFAULTS = {"partial_rotary_factor": 0.25, "head_dim": 256, "linear_conv_kernel_dim": 4}


def keys(config: Config) -> Keys:
    """The keys of Qwen3-Next and Qwen3.5 without those of experts."""
    check_config(config, attention_bias=False)
    check_config(config, linear_value_head_dim=config["linear_key_head_dim"])
    n, n_head = int(config["linear_key_head_dim"]), int(config["linear_num_value_heads"])
    found = base_keys(config, "silu")
    every, n_layer = int(config.get("full_attention_interval") or 4), found["block_count"]
    kinds = config.get("layer_types") or [
        "full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(n_layer)
    ]
    return found | {
        "attention.recurrent_layers": [kind == "linear_attention" for kind in kinds],
        "full_attention_interval": every,
        "ssm.conv_kernel": int(config["linear_conv_kernel_dim"]),
        "ssm.state_size": n,
        "ssm.group_count": int(config["linear_num_key_heads"]),
        "ssm.time_step_rank": n_head,
        "ssm.inner_size": int(config["linear_value_head_dim"]) * n_head,
    }


def keys_of_experts(config: Config) -> Keys:
    """The keys of models with experts in every layer, and one that all tokens use."""
    check_config(config, norm_topk_prob=True, mlp_only_layers=[], decoder_sparse_step=1)
    n_ff = int(config["shared_expert_intermediate_size"])
    return keys(config) | {"expert_shared_feed_forward_length": n_ff}


def change(name: str, x: Array, config: Config) -> Tensors:
    """Norms as factors, ``A`` from its logarithm, convolutions without the input's channels."""
    if name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
        return {name: x + 1}
    if name.endswith("ssm_a"):
        return {name: -np.exp(x)}
    return {name: x[:, 0] if name.endswith("ssm_conv1d.weight") else x}


def _change(name: str, x: Array, config: Config) -> Tensors:
    """``change``, and the rows of queries, keys, values and gates apart for each head of keys."""
    if not name.endswith("attn_qkv.weight"):
        return change(name, x, config)
    n_group, n_head = config["linear_num_key_heads"], config["linear_num_value_heads"]
    n, n_value = config["linear_key_head_dim"], config["linear_value_head_dim"]
    heads = x.reshape(n_group, -1, x.shape[-1])
    ends = np.cumsum([n, n, n_value * n_head // n_group])
    *qkv, z = (part.reshape(-1, x.shape[-1]) for part in np.split(heads, ends, 1))
    return {name: np.concatenate(qkv), name.replace("attn_qkv", "attn_gate"): z}


_LINEAR = "model.layers.{i}.linear_attn"
NAMES = {
    **{k: x for k, x in qwen3.CONVERT.tensors.items() if x.endswith(".weight")},
    "model.layers.{i}.self_attn.q_proj.weight": "blk.{i}.attn_q.weight",
    "model.layers.{i}.self_attn.k_proj.weight": "blk.{i}.attn_k.weight",
    "model.layers.{i}.self_attn.v_proj.weight": "blk.{i}.attn_v.weight",
    "model.layers.{i}.self_attn.o_proj.weight": "blk.{i}.attn_output.weight",
    "model.layers.{i}.post_attention_layernorm.weight": "blk.{i}.post_attention_norm.weight",
    f"{_LINEAR}.conv1d.weight": "blk.{i}.ssm_conv1d.weight",
    f"{_LINEAR}.dt_bias": "blk.{i}.ssm_dt.bias",
    f"{_LINEAR}.A_log": "blk.{i}.ssm_a",
    f"{_LINEAR}.norm.weight": "blk.{i}.ssm_norm.weight",
    f"{_LINEAR}.out_proj.weight": "blk.{i}.ssm_out.weight",
}
EXPERT_NAMES = {
    **qwen2moe.ROUTED,
    **qwen2moe.shared("shared_expert"),
    "model.layers.{i}.mlp.shared_expert_gate.weight": "blk.{i}.ffn_gate_inp_shexp.weight",
}
MTP = Nextn(
    hparams={"attention_interval": 1},
    layer=lambda config, i: {"attention.recurrent_layers": False},
)

CONVERT = Convert(
    models=("Qwen3NextForCausalLM",),
    tensors={
        **NAMES,
        **EXPERT_NAMES,
        f"{_LINEAR}.in_proj_qkvz.weight": "blk.{i}.attn_qkv.weight",
        f"{_LINEAR}.in_proj_ba.weight": "blk.{i}.ssm_ba.weight",
    },
    keys=keys_of_experts,
    change=_change,
    defaults=DEFAULTS,
)
