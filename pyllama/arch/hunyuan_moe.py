"""Hunyuan-A13B: Hunyuan's graph with experts, and a shared one of the size of a dense part.

Source: Tencent 2025, "Hunyuan-A13B Technical Report"; llama.cpp, ``llama_model_hunyuan_moe``.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import ModelError
from ..graph.tensors import EXPERTS, SHARED_EXPERTS
from ..hparams import Key, Values
from ..mapping.rules import Config, Keys
from . import hunyuan_dense, qwen2moe

NAME = "hunyuan-moe"

HPARAMS: Values = {
    "rope_neox": True,
    "n_ff_exp": Key("expert_feed_forward_length"),
    "n_ff_shexp": Key("expert_shared_feed_forward_length"),
}

TENSORS = {**hunyuan_dense.TENSORS, **EXPERTS, **SHARED_EXPERTS}

build_graph = hunyuan_dense.build_graph


def _of_all(config: Config, name: str) -> int:
    """A value that is one number or a list with a number for each layer.

    Raises:
        ModelError: layers differ.
    """
    values = config[name] if isinstance(config[name], list) else [config[name]]
    if len({*values}) != 1:
        raise ModelError(f"config.json: {name} differs between layers; it is not supported")
    return int(values[0])


def _keys(config: Config) -> Keys:
    n_ff = int(config["intermediate_size"])
    n_ff_exp = (
        _of_all(config, "moe_intermediate_size") if "moe_intermediate_size" in config else n_ff
    )
    n_shared = _of_all(config, "num_shared_expert") if "num_shared_expert" in config else 1
    if n_ff_exp != n_ff or n_shared != 1:
        raise ModelError(
            f"config.json: {n_shared} shared experts, and experts of {n_ff_exp} neurons; want one, "
            f"and {n_ff} as in intermediate_size"
        )
    return hunyuan_dense.keys({**config, "moe_intermediate_size": n_ff_exp}) | {
        "expert_used_count": _of_all(config, "moe_topk"),
        "expert_shared_count": n_shared,
        "expert_shared_feed_forward_length": n_ff,
    }


CONVERT = replace(
    hunyuan_dense.CONVERT,
    models=("HunYuanMoEV1ForCausalLM",),
    tensors={
        **hunyuan_dense.CONVERT.tensors,
        **qwen2moe.ROUTED,
        **qwen2moe.shared("shared_mlp"),
        "model.layers.{i}.mlp.gate.wg.weight": "blk.{i}.ffn_gate_inp.weight",
    },
    keys=_keys,
)
