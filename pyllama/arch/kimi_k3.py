"""Kimi-K3 (text): Kimi-Linear with attention residuals, LatentMoE, SiTU and gates.

Layers form blocks. The residual stream is zero at the start of each, and a part of a layer reads a
weighted sum of it and of the results of the blocks before (``graph/attention/residuals.py``).
Source: Kimi Team 2026, "Kimi K3"; llama.cpp, ``llama_model_kimi_k3``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph import hybrid
from ..graph.attention import mla
from ..graph.attention.factors import attention_gate
from ..graph.attention.residuals import append_block, attend_blocks
from ..graph.builder import GraphBuilder
from ..graph.delta_net import kimi_delta
from ..graph.experts import latent_experts
from ..graph.ffn import ffn
from ..graph.tensors import only_in, without
from ..hparams import Got, Key, Values
from ..mapping.rules import (
    Array,
    Config,
    Convert,
    Keys,
    Tensors,
    check_config,
    float32,
)
from . import kimi_linear

NAME = "kimi-k3"


def _latent_columns(got: Got) -> tuple[int, ...]:
    n_layer, lead = int(got["n_layer"]), int(got["n_dense_lead"])
    return tuple(int(got["n_latent"]) * (i >= lead) for i in range(n_layer))


HPARAMS: Values = {
    **kimi_linear.HPARAMS,
    "lowest_decay": Key("kda.gate_lower_bound", 0.0),
    "expert_gating": Key("expert_gating_func"),
    "expert_weights_norm": Key("expert_weights_norm", False),
    "n_latent": Key("expert_latent_length", 0),
    "n_expert_in": lambda got: got["n_latent"] or got["n_embd"],
    "n_latent_arr": _latent_columns,
    "situ_beta": Key("activation.situ_beta"),
    "situ_up_beta": Key("activation.situ_linear_beta"),
    "n_block": Key("attn_res.block_size"),  # layers
    "n_block_score": lambda got: got["n_embd"] if got["n_block"] else 0,
}

TENSORS = {
    **without(kimi_linear.TENSORS, "ssm_g_", "ssm_a", "_exps", "output.weight?"),
    **only_in(
        "recurs",
        {"blk.{i}.ssm_g.weight": ("n_embd", "n_kda_all"), "blk.{i}.ssm_a": ("n_head",)},
    ),
    **only_in("attends", {"blk.{i}.attn_gate.weight?": ("n_embd", "n_head*n_value")}),
    "blk.{i}.ffn_routed_down.weight": ("n_embd", "n_latent_arr"),
    "blk.{i}.ffn_gate_exps.weight": ("n_expert_in", "n_ff_exp", "n_expert"),
    "blk.{i}.ffn_up_exps.weight": ("n_expert_in", "n_ff_exp", "n_expert"),
    "blk.{i}.ffn_down_exps.weight": ("n_ff_exp", "n_expert_in", "n_expert"),
    "blk.{i}.ffn_routed_norm.weight?": ("n_latent_arr",),
    "blk.{i}.ffn_routed_up.weight": ("n_latent_arr", "n_embd"),
    "blk.{i}.attn_res_score.weight": ("n_block_score",),
    "blk.{i}.ffn_res_score.weight": ("n_block_score",),
    "output_res_score.weight": ("n_block_score",),
    "output.weight": ("n_embd", "n_vocab"),
}


def _latent(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    out = mla.latent_attention(b, x, i)
    if f"blk.{i}.attn_gate.weight" in b.weights:
        out = attention_gate(b, out, x, i, "sigmoid")
    return b.linear(out, f"blk.{i}.attn_output", f"attn_out-{i}")


_mixer = hybrid.attention_or(kimi_delta, _latent)


def _feed_forward(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    if b.hparams.has_experts(i):
        return latent_experts(b, x, i, "situ", kind="routed")
    return ffn(b, x, i, "situ")


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    n_block = b.hparams.size("n_block")
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    blocks: Tensor | None = None
    for i in range(b.hparams.n_layer):
        cur = attend_blocks(b, blocks, inp, f"blk.{i}.attn_res_score", i)
        begins = n_block > 0 and i % n_block == 0
        if begins:
            blocks = append_block(b, blocks, inp)
        cur = _mixer(b, b.rms_norm(cur, f"blk.{i}.attn_norm", f"attn_norm-{i}"), i)
        if blocks is not None:
            (blocks,) = b.select_outputs(i, blocks)
        cur, inp = b.select_outputs(i, cur, inp)
        inp = cur if begins else b.add_residual(cur, inp, f"prefix_sum_attn-{i}")
        cur = attend_blocks(b, blocks, inp, f"blk.{i}.ffn_res_score", i)
        cur = _feed_forward(b, b.rms_norm(cur, f"blk.{i}.ffn_norm", f"ffn_norm-{i}"), i)
        inp = b.layer_output(ops.add(b.ctx, inp, cur), i)
    cur = attend_blocks(b, blocks, inp, "output_res_score", b.hparams.n_layer)
    return b.output(b.rms_norm(cur, "output_norm", "result_norm"))


def _keys(config: Config) -> Keys:
    linear = config["linear_attn_config"]
    check_config(config, mla_use_nope=True, num_nextn_predict_layers=0)
    check_config(config, moe_router_activation_func="sigmoid")
    check_config(linear, use_full_rank_gate=True)
    keys = kimi_linear.CONVERT.keys({**config, "moe_renormalize": True}) | {
        "expert_weights_norm": bool(config["moe_renormalize"]),
        "activation.situ_beta": float32(config["activation_situ_beta"]),
        "activation.situ_linear_beta": float32(config["activation_situ_linear_beta"]),
        "attn_res.block_size": int(config.get("attn_res_block_size") or 0),
    }
    if linear.get("gate_lower_bound") is not None:
        keys["kda.gate_lower_bound"] = float32(linear["gate_lower_bound"])
    if config.get("routed_expert_hidden_size") is not None:
        keys["expert_latent_length"] = int(config["routed_expert_hidden_size"])
    return keys


def _change(name: str, x: Array, config: Config) -> Tensors:
    if name.endswith("ssm_a"):
        return {name: -np.exp(x.reshape(-1)[: config["num_attention_heads"]])}
    return kimi_linear.CONVERT.change(name, x, config)


_LAYER, _MOE = "model.layers.{i}", "model.layers.{i}.block_sparse_moe"
_SCORES = {
    f"{_LAYER}.self_attention_res": "blk.{i}.attn_res_score.weight",
    f"{_LAYER}.mlp_res": "blk.{i}.ffn_res_score.weight",
    "model.output_attn_res": "output_res_score.weight",
}
CONVERT = Convert(
    models=("KimiK3ForConditionalGeneration", "KimiLinearForCausalLM"),
    accepts=kimi_linear.is_k3,
    tensors={
        **kimi_linear.CONVERT.tensors,
        f"{_LAYER}.self_attn.g_proj.weight": kimi_linear.GATE,
        **{
            f"{_MOE}.routed_expert_{theirs}.weight": f"blk.{{i}}.ffn_routed_{ours}.weight"
            for theirs, ours in (("down_proj", "down"), ("norm", "norm"), ("up_proj", "up"))
        },
        **{
            f"{theirs}_{part}.weight": f"{ours}[{k}]"
            for theirs, ours in _SCORES.items()
            for k, part in enumerate(("norm", "proj"))
        },
    },
    products=tuple(_SCORES.values()),
    rename=partial(kimi_linear.gate_name, attends=kimi_linear.attends, delta="ssm_g"),
    keys=_keys,
    change=_change,
    defaults={"mla_use_nope": False},
)
