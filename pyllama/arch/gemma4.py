"""Gemma 4 (text): other heads in windowed layers, per-layer embeddings, shared keys and values.

Experts, where there are any, are computed beside a dense feed-forward part.
Source: Google 2026, "Gemma 4"; llama.cpp, ``llama_model_gemma4``.
"""

from __future__ import annotations

import math

import numpy as np

import pyggml as ops
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph.altup import stream
from ..graph.attention.shared_kv import KEYS_AND_VALUES, SHARED_KV, normalized_qkv
from ..graph.builder import GraphBuilder
from ..graph.dense import ffn_hidden
from ..graph.experts import experts
from ..graph.per_layer import PER_LAYER, PER_LAYER_SIZES, per_layer_inputs, per_layer_output
from ..graph.tensors import without
from ..hparams import Got, Key, Values, window_values
from ..mapping.rules import OTHER_MEDIA, Config, Convert, Keys, Tensors, base_keys, check_config
from . import gemma3, gemma3n


def _n_rot_full(got: Got) -> int:
    """Rotated columns of a head in layers without a window, 0 if there are none."""
    both = zip(got["n_rot_arr"], got["swa_layers"], strict=True)
    return next((n for n, slides in both if not slides), 0)


HPARAMS: Values = {
    "rope_neox": True,
    **window_values(6, base=10000.0),
    "attn_scale": 1.0,
    "final_logit_softcap": Key("final_logit_softcapping", 0.0),
    "ffn_beside_experts": True,
    "n_rot_full": _n_rot_full,
    "n_embd_experts": lambda got: got["n_embd"] if got["n_expert"] else 0,
    **PER_LAYER_SIZES,
    **SHARED_KV,
}

TENSORS = {
    **without(gemma3.TENSORS, "attn_k", "attn_v", "rope_f"),
    **without(KEYS_AND_VALUES, "attn_v"),
    "blk.{i}.attn_v.weight?": ("n_embd", "n_embd_v"),
    "blk.{i}.layer_output_scale.weight?": ("1",),
    "blk.{i}.post_ffw_norm_1.weight": ("n_embd_experts",),
    "blk.{i}.pre_ffw_norm_2.weight": ("n_embd_experts",),
    "blk.{i}.ffn_gate_inp.weight": ("n_embd", "n_expert"),
    "blk.{i}.ffn_gate_inp.scale": ("n_embd_experts",),
    "blk.{i}.ffn_gate_up_exps.weight": ("n_embd", "2*n_ff_exp", "n_expert"),
    "blk.{i}.ffn_down_exps.weight": ("n_ff_exp", "n_embd", "n_expert"),
    "blk.{i}.ffn_down_exps.scale": ("n_expert",),
    "blk.{i}.post_ffw_norm_2.weight": ("n_embd_experts",),
    **PER_LAYER,
    "rope_freqs.weight": ("n_rot_full/2",),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    hp, ctx = b.hparams, b.ctx
    inp = ops.scale(ctx, b.embed("token_embd.weight"), math.sqrt(hp.n_embd))  # [n_embd, T]
    inputs = per_layer_inputs(b, inp) if hp.own["n_embd_per_layer"] else None
    for i in range(hp.n_layer):
        cur = b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        q, k, v = normalized_qkv(b, cur, i)
        k = None if k is None else b.rope(k, f"Kcur-{i}", i)
        cur = b.attention(b.rope(q, f"Qcur-{i}", i), k, v, i)
        inp = after_attention(b, cur, inp, i, None if inputs is None else stream(b, inputs, i))
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


def after_attention(
    b: GraphBuilder, cur: Tensor, inp: Tensor, i: int, of_layer: Tensor | None = None
) -> Tensor:
    """The output of layer ``i``.

    Args:
        of_layer: the tokens' embeddings for this layer; None without.

    Shape:
        cur [n_embd_out, T] from attention, inp [n_embd, T], of_layer [n_embd_per_layer, T] ->
        inp's; in the last layer the columns of `select_outputs`
    """
    ctx = b.ctx
    cur, inp = b.select_outputs(i, cur, inp)
    if of_layer is not None:
        (of_layer,) = b.select_outputs(i, of_layer)
    cur = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}")
    cur = b.rms_norm(cur, f"blk.{i}.post_attention_norm", f"attn_post_norm-{i}")
    inp = ops.add(ctx, cur, inp).set_name(f"sa_out-{i}")
    cur = b.rms_norm(_ffn(b, inp, i), f"blk.{i}.post_ffw_norm", f"ffn_post_norm-{i}")
    inp = ops.add(ctx, cur, inp)
    if of_layer is not None:
        inp = ops.add(ctx, per_layer_output(b, inp, of_layer, i), inp)
    scale = b.weights.get(f"blk.{i}.layer_output_scale.weight")
    return b.layer_output((inp if scale is None else ops.mul(ctx, inp, scale)), i)


def _ffn(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """The dense feed-forward part, plus experts in models with experts: [n_embd, T]."""
    ctx, act = b.ctx, b.hparams.hidden_act or "gelu"
    hidden = ffn_hidden(b, b.rms_norm(x, f"blk.{i}.ffn_norm", f"ffn_norm-{i}"), i, act, "")
    dense = b.linear(hidden, f"blk.{i}.ffn_down", f"ffn_out-{i}")
    if not b.hparams.n_expert:
        return dense
    dense = b.rms_norm(dense, f"blk.{i}.post_ffw_norm_1", f"ffn_mlp-{i}")
    router_in = ops.scale(ctx, ops.rms_norm(ctx, x, b.hparams.norm_eps), b.hparams.n_embd**-0.5)
    router_in = ops.mul(ctx, router_in, b.weight(f"blk.{i}.ffn_gate_inp.scale"))
    cur = b.rms_norm(x, f"blk.{i}.pre_ffw_norm_2", f"ffn_norm_2-{i}")
    cur = experts(b, cur, i, act, router_in=router_in)
    cur = b.rms_norm(cur, f"blk.{i}.post_ffw_norm_2", f"ffn_moe-{i}")
    return ops.add(ctx, dense, cur).set_name(f"ffn_moe_combined-{i}")


def _of_full_layers(config: Config, name: str, old_name: str) -> int | None:
    """A size of layers without a window, from either form of config.json."""
    if config.get(old_name) is not None:
        return int(config[old_name])
    own = config.get("per_layer_config") or {}
    kinds = enumerate(config["layer_types"])
    found = [own.get(str(i), {}).get(name) for i, kind in kinds if kind == "full_attention"]
    return next((int(x) for x in found if x is not None), None)


def keys(config: Config) -> Keys:
    """The keys of Gemma 4, and of models with the same config.json."""
    check_config(config, attention_bias=False)
    if config.get("use_bidirectional_attention") == "all":
        raise ModelError("config.json: use_bidirectional_attention is 'all'; not supported")
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    rope = {k: {"rope_theta": x["rope_theta"]} for k, x in config["rope_parameters"].items()}
    found = base_keys({**config, "rope_parameters": rope}, "gelu")
    shared = int(config.get("num_kv_shared_layers") or 0)
    full = _of_full_layers(config, "head_dim", "global_head_dim")
    assert full is not None
    for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        found |= {name: full, f"{name}_swa": int(config["head_dim"])}
    found |= {
        "attention.sliding_window": int(config["sliding_window"]),
        "attention.sliding_window_pattern": slides,
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": int(config.get("hidden_size_per_layer_input") or 0),
    }
    heads = _of_full_layers(config, "num_key_value_heads", "num_global_key_value_heads")
    if heads is not None:
        usual = int(config["num_key_value_heads"])
        found["attention.head_count_kv"] = [usual if sliding else heads for sliding in slides]
    if config.get("use_double_wide_mlp"):
        n, n_ff = len(slides), int(config["intermediate_size"])
        found["feed_forward_length"] = [n_ff * (1 + (i >= n - shared)) for i in range(n)]
    if config.get("top_k_experts"):
        found["expert_used_count"] = int(config["top_k_experts"])
    if config.get("final_logit_softcapping"):
        found["final_logit_softcapping"] = float(config["final_logit_softcapping"])
    return found


def _rope_factors(config: Config) -> Tensors:
    """Divisors of rope's angles in layers without a window: most pairs are not rotated."""
    rope = config["rope_parameters"]["full_attention"]
    if rope.get("rope_type") != "proportional":
        raise ModelError(f"config.json: rope_type is {rope.get('rope_type')}, not 'proportional'")
    pairs = (_of_full_layers(config, "head_dim", "global_head_dim") or 0) // 2
    factors = np.full(pairs, 1e30, np.float32)
    factors[: int(2 * pairs * rope["partial_rotary_factor"] / 2)] = 1
    return {"rope_freqs.weight": factors}


NAMES = {
    **gemma3.NAMES,
    **gemma3n.PER_LAYER_NAMES,
    "model.layers.{i}.layer_scalar": "blk.{i}.layer_output_scale.weight",
    "model.layers.{i}.post_feedforward_layernorm_1.weight": "blk.{i}.post_ffw_norm_1.weight",
    "model.layers.{i}.pre_feedforward_layernorm_2.weight": "blk.{i}.pre_ffw_norm_2.weight",
    "model.layers.{i}.post_feedforward_layernorm_2.weight": "blk.{i}.post_ffw_norm_2.weight",
    "model.layers.{i}.router.proj.weight": "blk.{i}.ffn_gate_inp.weight",
    "model.layers.{i}.router.scale": "blk.{i}.ffn_gate_inp.scale",
    "model.layers.{i}.router.per_expert_scale": "blk.{i}.ffn_down_exps.scale",
    "model.layers.{i}.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
    "model.layers.{i}.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
}
MEDIA = (*OTHER_MEDIA, "*vision_embedder.*", "*embed_vision.*", "*embed_audio.*")
CONVERT = Convert(
    models=(
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
    ),
    tensors=NAMES,
    other_media=MEDIA,
    defaults={"head_dim": 256, "rms_norm_eps": 1e-6, "sliding_window": 512},
    keys=keys,
    change=gemma3n.pad_vocabulary,
    extra=_rope_factors,
)
