"""Cohere2 MoE: attention and experts in parallel, rope in windowed and dense layers only.

Source: Cohere 2026, "North Mini"; llama.cpp, ``llama_model_cohere2moe``.
"""

from __future__ import annotations

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.ffn import ffn
from ..graph.tensors import ATTENTION, EXPERTS, GATED_FFN, OUTPUT, SHARED_EXPERTS, without
from ..hparams import GATINGS, SIGMOID_ROUTER, Got, Key, Values, nope_without_window, window_values
from ..mapping.rules import (
    Config,
    Convert,
    Keys,
    Nextn,
    base_keys,
    check_config,
    float32,
    layer_kind,
    window_keys,
)
from . import exaone_moe, qwen2, qwen2moe


def _nope_layers(got: Got) -> tuple[bool, ...]:
    nope = nope_without_window(got)
    return tuple(x and i >= got["n_dense_lead"] for i, x in enumerate(nope))


HPARAMS: Values = {
    "eps": Key("attention.layer_norm_epsilon", 0.0),
    "rms_eps": Key("attention.layer_norm_rms_epsilon", 0.0),
    "norm_eps": lambda got: got["rms_eps"] or got["eps"],
    "logit_scale": Key("logit_scale"),
    **window_values(4),
    "swa_dense_first": True,
    "nope_layers": _nope_layers,
    "n_ff_shexp": Key("expert_shared_feed_forward_length", 0),
    **SIGMOID_ROUTER,
}

MTP = Nextn(
    hparams={"nope_layers": lambda got: (False,)},
    layer=lambda config, i: {
        "attention.sliding_window_pattern": layer_kind(config, i) == "sliding_attention"
    },
)

TENSORS = {
    **ATTENTION,
    **GATED_FFN,
    **EXPERTS,
    **SHARED_EXPERTS,
    **OUTPUT,
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    hp, ctx = b.hparams, b.ctx
    norm = b.rms_norm if hp.own["rms_eps"] else b.layer_norm
    inp = b.embed("token_embd.weight", norm)  # [n_embd, T]
    for i in range(hp.n_layer):
        x = norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        cur = b.self_attention(x, i)
        cur, inp, x = b.select_outputs(i, cur, inp, x)
        inp = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        cur = ffn(b, x, i, "silu")
        if hp.of_layer(i).n_ff_shexp:  # the mean of routed and shared experts
            cur = ops.scale(ctx, cur, 0.5)
        inp = b.layer_output(ops.add(ctx, cur, inp), i)
    return b.output(norm(inp, "output_norm", "result_norm"))


def _keys(config: Config) -> Keys:
    check_config(config, shared_expert_combination_strategy="average", attention_bias=False)
    lead = exaone_moe.dense_lead(config)
    if lead:
        check_config(config, prefix_dense_sliding_window_pattern=1)
    n_exp, shared = int(config["intermediate_size"]), int(config.get("num_shared_experts") or 0)
    gating = str(config.get("expert_selection_fn") or "softmax")
    keys = base_keys(config, "silu") | window_keys(config, 4)
    keys |= {
        "logit_scale": float32(config["logit_scale"]),
        "rope.dimension_count": int(config["head_dim"]),
        "rope.scaling.type": "none",
        "feed_forward_length": int(config.get("prefix_dense_intermediate_size") or n_exp),
        "leading_dense_block_count": lead,
        "expert_feed_forward_length": n_exp,
        "expert_gating_func": GATINGS.index(gating),
        "expert_weights_norm": gating == "softmax" or bool(config.get("norm_topk_prob")),
    }
    if shared:
        keys["expert_shared_count"] = shared
        keys["expert_shared_feed_forward_length"] = n_exp * shared
    return keys


CONVERT = Convert(
    models=("Cohere2MoeForCausalLM",),
    tensors={
        **without(qwen2.CONVERT.tensors, "post_attention"),
        **qwen2moe.ROUTED,
        **qwen2moe.shared("shared_experts"),
    },
    keys=_keys,
)
