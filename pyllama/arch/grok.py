"""Grok: scaled embeddings, scores and logits, soft caps, norms before and after each part, experts.

Grok 2 has a dense feed-forward part beside the experts. Soft caps of routers and a temperature of
long texts are not computed, as in llama.cpp.
Source: xAI 2024, "Open Release of Grok-1"; llama.cpp, ``llama_model_grok``.
"""

from __future__ import annotations

import math

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.dense import ffn_hidden
from ..graph.experts import experts
from ..graph.tensors import ATTENTION, EXPERTS, OUTPUT
from ..hparams import Key, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, float32, head_columns
from . import llama

HPARAMS: Values = {
    "rope_neox": True,
    "yarn_beta_fast": Key("rope.scaling.yarn_beta_fast", 8.0),
    "embedding_scale": Key("embedding_scale", 78.38367176906169),
    "logit_scale": Key("logit_scale", 0.5773502691896257),
    "attn_scale": Key("attention.output_scale", 0.08838834764831845),
    "attn_logit_softcap": Key("attn_logit_softcapping", 30.0),
    "final_logit_softcap": Key("final_logit_softcapping", 0.0),
    "n_exp": Key("expert_feed_forward_length", 0),  # of Grok 2
    "n_ff_exp": lambda got: got["n_exp"] or got["n_ff_arr"][0],
    "ffn_beside_experts": True,
    "n_ff_dense": lambda got: got["n_ff_arr"][0] if got["n_exp"] else 0,
    "n_norm_1": lambda got: 0 if got["n_exp"] else got["n_embd"],
    "n_norm_2": lambda got: got["n_embd"] if got["n_exp"] else 0,
}

TENSORS = {
    **ATTENTION,
    "blk.{i}.attn_output_norm.weight": ("n_embd",),
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    "blk.{i}.ffn_gate.weight": ("n_embd", "n_ff_dense"),
    "blk.{i}.ffn_up.weight": ("n_embd", "n_ff_dense"),
    "blk.{i}.ffn_down.weight": ("n_ff_dense", "n_embd"),
    **EXPERTS,
    "blk.{i}.layer_output_norm.weight": ("n_norm_1",),
    "blk.{i}.post_ffw_norm.weight": ("n_norm_2",),
    **OUTPUT,
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    ctx, dense = b.ctx, b.hparams.own["n_ff_dense"]
    post_norm = "post_ffw_norm" if dense else "layer_output_norm"
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        cur = b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        cur = b.self_attention(cur, i)
        cur, inp = b.select_outputs(i, cur, inp)
        cur = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}")
        cur = b.rms_norm(cur, f"blk.{i}.attn_output_norm", f"attn_out_norm-{i}")
        inp = ops.add(ctx, cur, inp).set_name(f"ffn_inp-{i}")
        x = b.rms_norm(inp, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        cur = experts(b, x, i, "gelu")
        if dense:
            hidden = ffn_hidden(b, x, i, "gelu", "")
            cur = b.linear(hidden, f"blk.{i}.ffn_down", f"ffn_out-{i}", residual=cur)
            cur = ops.scale(ctx, cur, math.sqrt(0.5))
        cur = b.rms_norm(cur, f"blk.{i}.{post_norm}", f"ffn_post_norm-{i}")
        inp = b.layer_output(ops.add(ctx, cur, inp), i)
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


def _keys(config: Config) -> Keys:
    keys = base_keys(config)
    head_dim = head_columns(config)
    scales = {
        "attn_logit_softcapping": config.get("attn_logit_softcapping", 30.0),
        "router_logit_softcapping": config.get("router_logit_softcapping", 30.0),
        "attention.output_scale": config.get("attn_output_multiplier", head_dim**-0.5),
        "embedding_scale": config["embedding_multiplier_scale"],
        "logit_scale": config["output_multiplier_scale"],
    }
    if config.get("final_logit_softcapping"):
        scales["final_logit_softcapping"] = config["final_logit_softcapping"]
    if config.get("rope_type") in ("yarn", "original"):
        scaling = "rope.scaling."
        keys[f"{scaling}type"] = "yarn"
        keys[f"{scaling}original_context_length"] = int(config["original_max_position_embeddings"])
        scales[f"{scaling}factor"] = config["scaling_factor"]
        for ours, theirs in (("ext", "extrapolation"), ("attn", "attn")):
            scales[f"{scaling}yarn_{ours}_factor"] = config[f"{theirs}_factor"]
        for name in ("beta_fast", "beta_slow"):
            scales[f"{scaling}yarn_{name}"] = config[name]
    if config.get("attn_temperature_len"):
        keys["attention.temperature_length"] = int(config["attn_temperature_len"])
    return keys | {key: float32(value) for key, value in scales.items()}


def _names(layer: str, parts: dict[str, str]) -> dict[str, str]:
    return {f"{layer}.{k}.weight": f"blk.{{i}}.{x}.weight" for k, x in parts.items()}


CONVERT = Convert(
    models=("GrokForCausalLM", "Grok1ForCausalLM"),
    tensors={
        **llama.CONVERT.tensors,
        **_names(
            "model.layers.{i}",
            {
                "pre_attn_norm": "attn_norm",
                "post_attn_norm": "attn_output_norm",
                "pre_moe_norm": "ffn_norm",
                "post_moe_norm": "post_ffw_norm",
            },
        ),
        **_names(
            "transformer.decoder_layer.{i}",
            {
                "multi_head_attention.query": "attn_q",
                "multi_head_attention.key": "attn_k",
                "multi_head_attention.value": "attn_v",
                "multi_head_attention.linear": "attn_output",
                "rms_norm": "attn_norm",
                "rms_norm_1": "attn_output_norm",
                "rms_norm_2": "ffn_norm",
                "rms_norm_3": "layer_output_norm",
                "router": "ffn_gate_inp",
                "moe.{e}.linear": "ffn_gate_exps",
                "moe.{e}.linear_1": "ffn_down_exps",
                "moe.{e}.linear_v": "ffn_up_exps",
            },
        ),
        "transformer.in_out_embed.weight": "token_embd.weight",
        "transformer.rms_norm.weight": "output_norm.weight",
    },
    keys=_keys,
)
