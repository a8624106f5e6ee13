"""Granite 4 and Bamba: Mamba 2 in most layers, attention in the others; dense or with experts.

Granite 4 has Granite's factors, shared experts and no positions, Bamba rope on a part of each head.
Source: IBM 2025, "Granite 4.0 Language Models"; IBM 2024, "Bamba"; llama.cpp,
``llama_model_granite_hybrid``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..graph import hybrid
from ..graph.mamba import SSM2, SSM2_TENSORS, mamba2, states2_of
from ..graph.tensors import SHARED_EXPERTS, only_in, tensors, without
from ..hparams import Key, Values
from ..mapping.rules import (
    Array,
    Config,
    Convert,
    Keys,
    Tensors,
    head_columns,
    interleave_rope,
    kv_heads,
)
from . import granite, granitemoe, llama, mamba
from . import mamba2 as mamba2_arch

HPARAMS: Values = {
    **granite.HPARAMS,
    **SSM2,
    **hybrid.KINDS,
    "states": hybrid.states_where_recurrent(states2_of),
    "logit_divisor": Key("logit_scale", 1.0),
    "rotates": Key("rope.scaling.finetuned", True),
    "nope_layers": lambda got: (not got["rotates"],) * got["n_layer"],
    "n_shexp": Key("expert_shared_feed_forward_length", 0),  # files without experts have it, too
    "n_ff_shexp": lambda got: got["n_shexp"] if got["n_expert"] else 0,
}

TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd",),
    **hybrid.ATTENTION,
    **only_in("recurs", tensors(SSM2_TENSORS)),
    **without(llama.TENSORS, "attn_"),
    **SHARED_EXPERTS,
}

build_graph = partial(hybrid.decoder, mixer=hybrid.attention_or(mamba2))


def _is_bamba(config: Config) -> bool:
    return "BambaForCausalLM" in config["architectures"]


def attention_layers(config: Config) -> list[bool]:
    """Which layers have attention."""
    kinds, n_layer = config.get("layer_types"), int(config["num_hidden_layers"])
    if kinds:
        return [kind in ("attention", "full_attention") for kind in kinds]
    if config.get("attn_layer_period"):
        period, offset = int(config["attn_layer_period"]), int(config["attn_layer_offset"])
        return [i % period == offset for i in range(n_layer)]
    return [i in (config.get("attn_layer_indices") or ()) for i in range(n_layer)]


def _rotated(config: Config) -> int:
    """Columns of a head that would be rotated; Bamba rotates half of them."""
    n = head_columns(config)
    return int(config.get("attn_rotary_emb") or n // 2) if _is_bamba(config) else n


def ssm_keys(config: Config) -> Keys:
    """The keys of Mamba 2 in hybrid models."""
    inner = config.get("mamba_d_ssm") or config["mamba_expand"] * config["hidden_size"]
    return {
        "ssm.conv_kernel": int(config.get("mamba_d_conv") or 4),
        "ssm.inner_size": int(inner),
        "ssm.state_size": int(config["mamba_d_state"]),
        "ssm.time_step_rank": int(config["mamba_n_heads"]),
        "ssm.group_count": int(config["mamba_n_groups"]),
        **mamba2_arch.time_step_keys(config),
    }


def _keys(config: Config) -> Keys:
    bamba, n_head_kv = _is_bamba(config), kv_heads(config)
    keys: Keys = (llama if bamba else granitemoe).CONVERT.keys(config)
    rotates = bamba or config.get("position_embedding_type") == "rope"
    if not rotates:
        keys["context_length"] = 1 << 20  # as in llama.cpp: there is no limit
    heads = [n_head_kv if attends else 0 for attends in attention_layers(config)]
    return keys | {
        "attention.head_count_kv": np.array(heads, np.int32),
        "rope.dimension_count": _rotated(config),
        "rope.scaling.finetuned": rotates,
        **ssm_keys(config),
    }


def _change(name: str, x: Array, config: Config) -> Tensors:
    part, n = name.split(".")[-2], _rotated(config)
    if part in ("attn_q", "attn_k"):
        heads = x.reshape(-1, head_columns(config), *x.shape[1:])
        rows = interleave_rope(heads[:, :n].reshape(-1, *x.shape[1:]), len(heads))
        rows = rows.reshape(len(heads), n, *x.shape[1:])
        return {name: np.concatenate([rows, heads[:, n:]], 1).reshape(x.shape)}
    if "gate_up" in name or "shexp" in name:
        end = "_shexp" if config.get("num_local_experts") else ""
        changed = granitemoe.CONVERT.change(name, x, config)
        return {new.replace("_shexp", end): y for new, y in changed.items()}
    return mamba2_arch.change(name, x, {"n_groups": config["mamba_n_groups"]})


HYBRID_NAMES = {  # of Bamba, Falcon-H1 and Jamba
    **{k.replace("mlp", "feed_forward"): x for k, x in llama.CONVERT.tensors.items()},
    "model.layers.{i}.pre_ff_layernorm.weight": "blk.{i}.ffn_norm.weight",
    "model.final_layernorm.weight": "output_norm.weight",
}
MAMBA_2_NAMES = mamba.names_in("model.layers.{i}.mamba", mamba2_arch.TENSOR_NAMES)

CONVERT = Convert(
    models=("GraniteMoeHybridForCausalLM", "BambaForCausalLM"),
    tensors={**granitemoe.CONVERT.tensors, **HYBRID_NAMES, **MAMBA_2_NAMES},
    accepts=lambda config: _is_bamba(config) or granite.is_hybrid(config),
    keys=_keys,
    change=_change,
    of_class={"GraniteMoeHybridForCausalLM": {"rms_norm_eps": 1e-6}},
)
