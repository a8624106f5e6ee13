"""Step-3.5: gated attention, more heads in windowed layers, experts with limits after dense layers.

Source: StepFun 2026, "Step-3.5-Flash"; llama.cpp, ``llama_model_step35``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..graph.dense import SWIGLU_LIMITS
from ..graph.tensors import DEEPSEEK_EXPERTS, without
from ..hparams import GATINGS, SIGMOID_ROUTER, Got, Key, Values, window_values
from ..mapping.rope import rope_factors
from ..mapping.rules import (
    OTHER_MEDIA,
    Config,
    Convert,
    Keys,
    Nextn,
    Tensors,
    base_keys,
    check_config,
    float32,
    layer_kind,
    window_keys,
)
from . import gemma3, llama, qwen3


def _n_rot(got: Got) -> tuple[int, ...]:
    """Of the file's number, layers with full attention rotate the half."""
    sizes = zip(got["n_rot_arr"], got["swa_layers"], strict=True)
    return tuple(n if windowed else n // 2 for n, windowed in sizes)


LIMITS = {"exp": "swiglu_limits", "shexp": "swiglu_limits_shared"}  # of experts: names in configs
HPARAMS: Values = {
    **SWIGLU_LIMITS,
    "limit_after": True,
    "rope_neox": True,
    **window_values(4, base=10000.0),
    "swa_dense_first": True,
    "n_rot_arr": _n_rot,
    "n_ff_shexp": Key("expert_shared_feed_forward_length", 0),
    **SIGMOID_ROUTER,
}

TENSORS = {
    **without(qwen3.TENSORS, "rope_f"),
    "rope_freqs.weight?": ("head_dim/2",),
    "blk.{i}.attn_gate.weight": ("n_embd", "n_head"),
    **DEEPSEEK_EXPERTS,
}


def _of_nextn(config: Config, i: int) -> Keys:
    """The values of layer ``i`` of multi-token prediction, whose limits follow the decoder's."""
    windowed = layer_kind(config, i) == "sliding_attention"
    at = int(config["num_hidden_layers"]) + i
    return {
        "attention.sliding_window_pattern": windowed,
        **{f"attention.{key}": n for key, n in _heads(config, windowed).items()},
        **{
            f"swiglu_clamp_{part}": limits[at] or 0.0 if at < len(limits) else 0.0
            for part, name in LIMITS.items()
            if (limits := config.get(name)) is not None
        },
    }


MTP = Nextn(
    hparams={"hidden": "l_out-0"},
    names={"transformer.shared_head.output.": "shared_head.head.", "transformer.": ""},
    layer=_of_nextn,
)

build_graph = partial(llama.decoder, act="silu", gate="sigmoid")


def _of_kinds(config: Config) -> Config:
    """The config with rope's parameters by kind of layer, which checkpoints have by layer."""
    kinds, thetas = config["layer_types"], config["rope_theta"]
    rope: Keys = {"full_attention": {"partial_rotary_factor": 0.5}}
    for i in reversed(range(int(config["num_hidden_layers"]))):
        theta = thetas[i] if isinstance(thetas, list) else thetas
        rope.setdefault(kinds[i], {})["rope_theta"] = theta
    rope["full_attention"] |= config.get("rope_scaling") or {}
    return {**config, "rope_theta": None, "rope_scaling": None, "rope_parameters": rope}


def _heads(config: Config, windowed: bool) -> dict[str, int]:
    """The numbers of heads in layers with a window or without."""
    own = (config.get("attention_other_setting") or {}) if windowed else config
    names = {"head_count": "num_attention_heads", "head_count_kv": "num_attention_groups"}
    return {key: int(own.get(name) or config[name]) for key, name in names.items()}


def _keys(config: Config) -> Keys:
    n_layer, head_dim = int(config["num_hidden_layers"]), int(config["head_dim"])
    kinds = config["layer_types"][:n_layer]
    windowed = [kind == "sliding_attention" for kind in kinds]
    factors = config.get("partial_rotary_factors")
    check_config(
        {**config, "partial_rotary_factors": factors and factors[:n_layer]},
        partial_rotary_factors=[1.0 if x else 0.5 for x in windowed], attention_bias=False,
        hidden_act="silu",
    )  # fmt: skip
    heads = [_heads(config, x) for x in windowed]
    experts = sorted(map(int, str(config["moe_layers_enum"]).split(",")))
    check_config({"experts": experts}, experts=[*range(experts[0], n_layer)])
    limits = {
        f"swiglu_clamp_{part}": np.array([x or 0.0 for x in config[name][:n_layer]], np.float32)
        for part, name in LIMITS.items()
        if config.get(name) is not None
    }
    config = {**config, "layer_types": kinds}
    return (
        base_keys(_of_kinds(config))
        | window_keys(config, 4)
        | limits
        | {
            **{f"attention.{key}": [n[key] for n in heads] for key in heads[0]},
            "rope.dimension_count": head_dim,
            "expert_count": int(config["moe_num_experts"]),
            "expert_used_count": int(config["moe_top_k"]),
            "expert_shared_feed_forward_length": int(config["share_expert_dim"]),
            "expert_gating_func": GATINGS.index("sigmoid"),
            "expert_weights_scale": float32(config.get("moe_router_scaling_factor") or 1.0),
            "expert_weights_norm": bool(config.get("norm_expert_weight", False)),
            "leading_dense_block_count": experts[0],
        }
    )


def _factors(config: Config) -> Tensors:
    """Divisors of rope's angles: 1 for columns that layers with full attention do not rotate."""
    n = int(config["head_dim"]) // 2
    return {
        name: np.concatenate([x, np.ones(n - len(x), np.float32)])
        for name, x in rope_factors(_of_kinds(config)).items()
    }


_MOE = "model.layers.{i}.moe"
CONVERT = Convert(
    models=("Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"),
    tensors={
        **qwen3.CONVERT.tensors,
        "model.layers.{i}.self_attn.g_proj.weight": "blk.{i}.attn_gate.weight",
        f"{_MOE}.gate.weight": "blk.{i}.ffn_gate_inp.weight",
        f"{_MOE}.router_bias": "blk.{i}.exp_probs_b.bias",
        **{
            f"{name}.{part}_proj.weight": f"blk.{{i}}.ffn_{part}_{kind}.weight"
            for name, kind in ((_MOE, "exps"), ("model.layers.{i}.share_expert", "shexp"))
            for part in ("gate", "up", "down")
        },
    },
    other_media=(*OTHER_MEDIA, "vit_*"),
    keys=_keys,
    change=gemma3.add_one,
    extra=_factors,
)
