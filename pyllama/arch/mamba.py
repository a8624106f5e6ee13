"""Mamba: layers of a selective state space, and no attention; FalconMamba normalizes dt, B and C.

Source: Gu and Dao 2023, "Mamba"; Zuo et al. 2024, "Falcon Mamba"; llama.cpp, ``llm_build_mamba``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph import mamba as layers
from ..graph.builder import GraphBuilder
from ..graph.tensors import OUTPUT, tensors
from ..hparams import Key, Values
from ..mapping.rules import Array, Config, Convert, Keys, check_config, float32

HPARAMS: Values = {
    **layers.SSM,
    "normed_dt_b_c": Key("ssm.dt_b_c_rms", False),
    "dt_b_c_eps": Key("ssm.dt_b_c_rms_epsilon", 0.0),
    "empty_layers": True,  # no layer has heads of attention or a feed-forward part
    "states": lambda got: (layers.states_of(got),) * got["n_layer"],
}

TENSORS = tensors({"blk.{i}.attn_norm.weight": ("n_embd",), **layers.SSM_TENSORS, **OUTPUT})


def decoder(b: GraphBuilder, mixer: Callable[[GraphBuilder, Tensor, int], Tensor]) -> Tensor:
    """All layers and the logits.

    Args:
        mixer: the part of a layer between its norm and the residual.
    """
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        cur = mixer(b, b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}"), i)
        cur, inp = b.select_outputs(i, cur, inp)
        inp = b.layer_output(ops.add(b.ctx, cur, inp), i)
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


build_graph = partial(decoder, mixer=layers.mamba)


def base(config: Config) -> Keys:
    """The keys of Mamba 1 and 2."""
    return {
        "context_length": 1 << 20,  # as in llama.cpp: there is no limit
        "embedding_length": int(config.get("hidden_size") or config["d_model"]),
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": int(config.get("num_hidden_layers") or config["n_layer"]),
        "attention.layer_norm_rms_epsilon": float32(config.get("layer_norm_epsilon") or 1e-5),
        "ssm.conv_kernel": int(config.get("conv_kernel") or config.get("d_conv") or 4),
    }


def _keys(config: Config) -> Keys:
    check_config(config, hidden_act="silu")
    found = base(config)
    n_embd = found["embedding_length"]
    rank = config.get("time_step_rank") or config.get("dt_rank") or -(n_embd // -16)
    inner = config.get("intermediate_size") or config.get("d_inner")
    falcon = config.get("model_type") == "falcon_mamba"
    keys = found | {
        "ssm.inner_size": int(inner or (config.get("expand") or 2) * n_embd),
        "ssm.state_size": int(config.get("state_size") or config.get("d_state") or 16),
        "ssm.time_step_rank": int(-(n_embd // -16) if rank == "auto" else rank),
        "ssm.dt_b_c_rms": falcon,
    }
    if falcon:  # a key of ours; llama.cpp takes the epsilon of the other norms
        keys["ssm.dt_b_c_rms_epsilon"] = float32(config.get("mixer_rms_eps") or 1e-6)
    return keys


def change(name: str, x: Array, config: Config) -> dict[str, Array]:
    """``A`` from its logarithm, and convolutions without the dimension of input channels."""
    if name.endswith("ssm_a"):
        x = -np.exp(x)
    elif name.endswith("ssm_conv1d.weight"):
        x = x.reshape(x.shape[0], x.shape[-1])
    return {name: x}


OUTER_NAMES = {
    "backbone.embeddings.weight": "token_embd.weight",
    "backbone.norm_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "backbone.layers.{i}.norm.weight": "blk.{i}.attn_norm.weight",
    "backbone.layers.{i}.mixer.in_proj.*": "blk.{i}.ssm_in.*",
    "backbone.layers.{i}.mixer.conv1d.*": "blk.{i}.ssm_conv1d.*",
    "backbone.layers.{i}.mixer.A_log": "blk.{i}.ssm_a",
    "backbone.layers.{i}.mixer.D": "blk.{i}.ssm_d",
    "backbone.layers.{i}.mixer.out_proj.*": "blk.{i}.ssm_out.*",
}
TENSOR_NAMES = {
    **LAYER_NAMES,
    "backbone.layers.{i}.mixer.x_proj.weight": "blk.{i}.ssm_x.weight",
    "backbone.layers.{i}.mixer.dt_proj.*": "blk.{i}.ssm_dt.*",
}


def names_in(module: str, names: Mapping[str, str]) -> dict[str, str]:
    """``TENSOR_NAMES`` of Mamba 1 or 2 in checkpoints that have it in ``module`` of a layer."""
    theirs = "backbone.layers.{i}.mixer"
    return {k.replace(theirs, module): x for k, x in names.items() if theirs in k}


CONVERT = Convert(
    models=("MambaForCausalLM", "MambaLMHeadModel", "FalconMambaForCausalLM"),
    tensors={**OUTER_NAMES, **TENSOR_NAMES},
    keys=_keys,
    change=change,
)
