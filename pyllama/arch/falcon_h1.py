"""Falcon-H1: attention and Mamba 2 side by side in each layer.

Its many multipliers are in the weights of files.
Source: Zuo et al. 2025, "Falcon-H1"; llama.cpp, ``llama_model_falcon_h1``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import pyggml as ops
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph import hybrid
from ..graph.builder import ROPE_FACTORS, GraphBuilder
from ..graph.mamba import SSM2, SSM2_TENSORS, mamba2, states2_of
from ..graph.tensors import OUTPUT, QKV, tensors
from ..hparams import Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors
from . import granitehybrid, llama
from . import mamba2 as mamba2_arch

NAME = "falcon-h1"

HPARAMS: Values = {
    **SSM2,
    "rope_neox": True,
    "states": lambda got: (states2_of(got),) * got["n_layer"],
}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.weight": ("n_embd",),
        **QKV,
        "blk.{i}.attn_output.*?": ("n_embd_out", "n_embd"),
        **SSM2_TENSORS,
        "blk.{i}.ffn_norm": ("n_embd",),
        "blk.{i}.ffn_gate.*?": ("n_embd", "n_ff"),
        "blk.{i}.ffn_up.*?": ("n_embd", "n_ff"),
        "blk.{i}.ffn_down.*?": ("n_ff", "n_embd"),
        **ROPE_FACTORS,
        **OUTPUT,
    }
)


def _mixer(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    return ops.add(b.ctx, hybrid.attention(b, x, i), mamba2(b, x, i))


build_graph = partial(hybrid.decoder, mixer=_mixer)


def _keys(config: Config) -> Keys:
    if config.get("mamba_rms_norm") and config.get("mamba_norm_before_gate", True):
        raise ModelError("config.json: mamba_norm_before_gate is true, which is not supported")
    return llama.keys(config) | granitehybrid.ssm_keys(config)


def _multipliers(part: str, config: Config) -> tuple[Any, Any]:
    """The factors of the weight and of the bias of a part of the model; of rows, or one for all."""
    one = {k: float(x) for k, x in config.items() if k.endswith("_multiplier")}
    gate, down = config.get("mlp_multipliers") or (1.0, 1.0)
    inner, key = one.get("attention_in_multiplier", 1.0), one.get("key_multiplier", 1.0)
    if part == "ssm_in":
        sizes = granitehybrid.ssm_keys(config)
        n, n_bc = sizes["ssm.inner_size"], sizes["ssm.group_count"] * sizes["ssm.state_size"]
        of_parts = np.array(config.get("ssm_multipliers") or [1.0] * 5, np.float32)
        rows = np.repeat(of_parts, (n, n, n_bc, n_bc, sizes["ssm.time_step_rank"]))
        return rows[:, None] * np.float32(one.get("ssm_in_multiplier", 1.0)), rows
    out = {
        "token_embd": one.get("embedding_multiplier", 1.0),
        "output": one.get("lm_head_multiplier", 1.0),
        "attn_output": one.get("attention_out_multiplier", 1.0),
        "ffn_gate": gate,
        "ffn_down": down,
        "ssm_out": one.get("ssm_out_multiplier", 1.0),
    }.get(part, 1.0)
    inputs = {"attn_q": (inner, 1.0), "attn_k": (inner * key, key), "attn_v": (inner, 1.0)}
    return inputs.get(part, (out, out))


def _change(name: str, x: Array, config: Config) -> Tensors:
    part, _, end = name.removeprefix("blk.").partition(".")[2].rpartition(".")
    if name in ("token_embd.weight", "output.weight"):
        part, end = name.split(".")
    if end in ("weight", "bias") and part not in ("ssm_conv1d", "ssm_norm", "ssm_dt"):
        factor = _multipliers(part, config)[end == "bias"]
        changed = {name: x * np.asarray(factor, x.dtype)}
        if part == "token_embd" and config.get("tie_word_embeddings"):
            output = np.asarray(_multipliers("output", config)[0], x.dtype)
            changed["output.weight"] = x * output  # tied embeddings have two multipliers
        return changed
    return mamba2_arch.change(name, x, {"n_groups": config["mamba_n_groups"]})


CONVERT = Convert(
    models=("FalconH1ForCausalLM",),
    tensors={
        **granitehybrid.HYBRID_NAMES,
        **granitehybrid.MAMBA_2_NAMES,
        "model.layers.{i}.pre_ff_layernorm.weight": "blk.{i}.ffn_norm",
    },
    keys=_keys,
    change=_change,
)
