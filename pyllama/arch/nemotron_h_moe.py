"""Nemotron-H with experts: Nemotron 3, whose MLP layers are mixtures of experts and shared ones.

A layer of multi-token prediction has both attention and experts, which checkpoints have as two.
Source: NVIDIA 2025, "Nemotron 3"; llama.cpp, ``llama_model_nemotron_h_moe``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pyggml as ops
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph import hybrid
from ..graph.builder import GraphBuilder
from ..graph.experts import latent_experts
from ..graph.tensors import OUTPUT, tensors
from ..hparams import GATINGS, Key, Values
from ..mapping.rules import Config, Keys, Nextn, kv_heads
from . import nemotron_h

HPARAMS: Values = {
    **nemotron_h.HPARAMS,
    "expert_layers": lambda got: tuple(n > 0 for n in got["n_ff_arr"]),
    "expert_gating": GATINGS.index("sigmoid"),
    "expert_weights_norm": Key("expert_weights_norm", False),
    "n_ff_shexp": Key("expert_shared_feed_forward_length", 0),
    "n_latent": Key("moe_latent_size", 0),
    "n_expert_in": lambda got: got["n_latent"] or got["n_embd"],
    "n_latent_arr": lambda got: tuple(
        got["n_latent"] * experts for experts in got["expert_layers"]
    ),
}

TENSORS = tensors(
    {
        **nemotron_h.MIXERS,
        "blk.{i}.ffn_gate_inp.weight": ("n_embd", "n_expert"),
        "blk.{i}.exp_probs_b.bias?": ("n_expert",),
        "blk.{i}.ffn_latent_down.*?": ("n_embd", "n_latent_arr"),
        "blk.{i}.ffn_up_exps.weight": ("n_expert_in", "n_ff_exp", "n_expert"),
        "blk.{i}.ffn_down_exps.weight": ("n_ff_exp", "n_expert_in", "n_expert"),
        "blk.{i}.ffn_latent_up.*?": ("n_latent_arr", "n_embd"),
        "blk.{i}.ffn_up_shexp.*?": ("n_embd", "n_ff_shexp"),
        "blk.{i}.ffn_down_shexp.*?": ("n_ff_shexp", "n_embd"),
        **OUTPUT,
    }
)


MTP = Nextn(
    tensors={"blk.{i}.post_attention_norm.weight": ("n_embd",)},
    names={"1.norm.": "post_attention_layernorm.", "1.final_layernorm.": "shared_head.norm."},
    layer=lambda config, i: {
        "attention.head_count_kv": kv_heads(config),
        "feed_forward_length": int(config["moe_intermediate_size"]),
    },
    n_parts=2,
)


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    return _nextn(b) if b.hparams.n_embd_target else nemotron_h.decoder(b, _experts)


def _nextn(b: GraphBuilder) -> Tensor:
    """The graph of a layer of multi-token prediction."""
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    cur = hybrid.attention(b, b.rms_norm(inp, "blk.0.attn_norm", "attn_norm-0"), 0)
    cur, inp = b.select_outputs(0, cur, inp)
    inp = b.add_residual(cur, inp, "attn_out-0")
    cur = _experts(b, b.rms_norm(inp, "blk.0.post_attention_norm", "attn_post_norm-0"), 0)
    inp = b.layer_output(ops.add(b.ctx, cur, inp), 0)
    return b.output(b.layer_norm(inp, "output_norm", "result_norm"))


_experts = partial(latent_experts, act="relu_sqr", kind="latent")


def _keys(config: Config) -> Keys:
    if "-" in nemotron_h.kinds(config):
        raise ModelError("config.json: layers with and without experts; this is not supported")
    n_ff = int(config["moe_intermediate_size"])
    keys = nemotron_h.keys({"intermediate_size": 0, **config}) | {
        "feed_forward_length": nemotron_h.by_layer(config, "E", n_ff),
        "expert_shared_feed_forward_length": int(config["moe_shared_expert_intermediate_size"]),
        "expert_shared_count": int(config.get("n_shared_experts") or 1),
        "expert_weights_norm": bool(config.get("norm_topk_prob", True)),
        "expert_weights_scale": float(config.get("routed_scaling_factor") or 1.0),
        "expert_group_count": int(config.get("n_group") or 1),
        "expert_group_used_count": int(config.get("topk_group") or 1),
    }
    return keys | ({"moe_latent_size": n} if (n := config.get("moe_latent_size")) else {})


_MIXER = "backbone.layers.{i}.mixer"
_NAMES = {
    "backbone.layers.{i}.post_attention_layernorm.weight": "blk.{i}.post_attention_norm.weight",
    f"{_MIXER}.gate.weight": "blk.{i}.ffn_gate_inp.weight",
    f"{_MIXER}.gate.e_score_correction.bias": "blk.{i}.exp_probs_b.bias",
    f"{_MIXER}.gate.e_score_correction_bias": "blk.{i}.exp_probs_b.bias",
    f"{_MIXER}.experts.{{e}}.up_proj.weight": "blk.{i}.ffn_up_exps.weight",
    f"{_MIXER}.experts.{{e}}.down_proj.weight": "blk.{i}.ffn_down_exps.weight",
    f"{_MIXER}.shared_experts.up_proj.*": "blk.{i}.ffn_up_shexp.*",
    f"{_MIXER}.shared_experts.down_proj.*": "blk.{i}.ffn_down_shexp.*",
    f"{_MIXER}.fc1_latent_proj.*": "blk.{i}.ffn_latent_down.*",
    f"{_MIXER}.fc2_latent_proj.*": "blk.{i}.ffn_latent_up.*",
}

CONVERT = replace(
    nemotron_h.CONVERT,
    tensors={
        **nemotron_h.CONVERT.tensors,
        **_NAMES,
        **{k.replace("backbone.", "model."): x for k, x in _NAMES.items()},
    },
    accepts=lambda config: "E" in nemotron_h.kinds(config),
    keys=_keys,
)
