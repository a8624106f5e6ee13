"""Mamba 2: layers of a selective state space with heads, and no attention.

Source: Dao and Gu 2024, "Transformers are SSMs"; llama.cpp, ``llm_build_mamba`` (Mamba 2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from ..graph.mamba import SSM2, SSM2_TENSORS, mamba2, states2_of
from ..graph.tensors import OUTPUT, tensors
from ..hparams import Values
from ..mapping.rules import Array, Config, Convert, Keys, check_config
from . import mamba

HPARAMS: Values = {
    **SSM2,
    "empty_layers": True,  # no layer has heads of attention or a feed-forward part
    "states": lambda got: (states2_of(got),) * got["n_layer"],
}

TENSORS = tensors({"blk.{i}.attn_norm.weight": ("n_embd",), **SSM2_TENSORS, **OUTPUT})

build_graph = partial(mamba.decoder, mixer=mamba2)


def _keys(config: Config) -> Keys:
    check_config(config, hidden_act="silu")
    n_embd = int(config.get("hidden_size") or config["d_model"])
    inner = int((config.get("expand") or 2) * n_embd)
    head_dim = int(config.get("head_dim") or 64)
    return mamba.base(config) | {
        "ssm.inner_size": inner,
        "ssm.state_size": int(config.get("state_size") or config.get("d_state") or 128),
        "ssm.time_step_rank": inner // head_dim,
        "ssm.group_count": int(config.get("n_groups") or 1),
        **time_step_keys(config),
    }


def time_step_keys(config: Config) -> Keys:
    """The limits of time steps, keys of ours; llama.cpp has none. {} if they are 0 and infinity."""
    given = config.get("time_step_limit") or (0.0, math.inf)
    # transformers 5 writes infinity as {"__float__": "Infinity"}
    low, high = (float(x["__float__"] if isinstance(x, Mapping) else x) for x in given)
    keys = {"ssm.time_step_min": low, "ssm.time_step_max": high}
    return {name: x for name, x in keys.items() if 0 < x < math.inf}


def change(name: str, x: Array, config: Config) -> dict[str, Array]:
    """As of Mamba 1, with a dimension more for ``A``, ``D`` and groups of the norm."""
    if name.endswith("ssm_norm.weight"):
        return {name: x.reshape(int(config.get("n_groups") or 1), -1)}
    (changed,) = mamba.change(name, x, config).values()
    return {name: changed[:, None] if name.endswith(("ssm_a", "ssm_d")) else changed}


TENSOR_NAMES = {
    **mamba.LAYER_NAMES,
    "backbone.layers.{i}.mixer.dt_bias": "blk.{i}.ssm_dt.bias",
    "backbone.layers.{i}.mixer.norm.weight": "blk.{i}.ssm_norm.weight",
}


CONVERT = Convert(
    models=("Mamba2ForCausalLM",),
    tensors={**mamba.OUTER_NAMES, **TENSOR_NAMES},
    keys=_keys,
    change=change,
)
