"""DeepSeek-V2, V3, R1, Kimi-K2, GLM-4.7-Flash, Youtu: latent attention, shared experts.

Lite models have no compressed queries, V3's router sigmoid gating with a bias, Youtu no experts.
Source: DeepSeek-AI 2024, "DeepSeek-V2" and "DeepSeek-V3"; llama.cpp, ``llm_build_deepseek2``.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from pyggml.tensor import Tensor

from ..graph.attention import mla
from ..graph.attention.factors import attn_temperature
from ..graph.builder import GraphBuilder
from ..graph.decoder import pre_norm_decoder
from ..graph.ffn import ffn
from ..graph.tensors import DEEPSEEK_EXPERTS, GATED_FFN, OUTPUT, without
from ..hparams import GATINGS, SHARED_SIZES, Key, Values
from ..mapping.rules import (
    OTHER_MEDIA,
    Array,
    Config,
    Convert,
    Keys,
    Nextn,
    Tensors,
    base_keys,
    check_config,
    float32,
)
from . import qwen2, qwen2moe

HPARAMS: Values = {
    **mla.HPARAMS,
    **SHARED_SIZES,
    "n_ff_exp": Key("expert_feed_forward_length", 0),
    "expert_weights_norm": Key("expert_weights_norm", False),
    "temperature": Key("attention.temperature_scale", 0.0),  # of Mistral's models
    "temperature_length": Key("attention.temperature_length", 0),
}

TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd",),
    **mla.TENSORS,
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    **GATED_FFN,
    **DEEPSEEK_EXPERTS,
    **OUTPUT,
}


MTP = Nextn()


def decoder(b: GraphBuilder, act: str) -> Tensor:
    """All layers and the logits [n_vocab, n_outputs]; ``act`` is of the feed-forward parts."""
    own, temperature = b.hparams.own, None
    if own.get("temperature"):
        every = own["temperature_length"] or b.hparams.n_ctx_orig
        temperature = attn_temperature(b, own["temperature"], every)
    attention = partial(mla.latent_attention, q_scale=temperature)
    return pre_norm_decoder(b, attention, partial(ffn, act=act))


build_graph = partial(decoder, act="silu")


def absorbed_keys(config: Config) -> Keys:
    """The sizes of absorbed latent attention."""
    n_lora, n_rot = int(config["kv_lora_rank"]), int(config["qk_rope_head_dim"])
    keys = {
        "attention.kv_lora_rank": n_lora,
        "attention.key_length": n_lora + n_rot,
        "attention.value_length": n_lora,
        "attention.key_length_mla": int(config["qk_nope_head_dim"]) + n_rot,
        "attention.value_length_mla": int(config["v_head_dim"]),
        "rope.dimension_count": n_rot,
    }
    if config.get("q_lora_rank") is not None:
        keys["attention.q_lora_rank"] = int(config["q_lora_rank"])
    return keys


def latent_keys(config: Config, gating: str) -> Keys:
    """The keys of models with absorbed latent attention.

    Args:
        gating: of the router, where ``scoring_func`` does not say.
    """
    check_config(config, moe_layer_freq=1)
    keys = base_keys(config, "silu") | absorbed_keys(config)
    keys["attention.head_count_kv"] = 1
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("mscale_all_dim"):
        keys["rope.scaling.yarn_log_multiplier"] = float32(0.1 * rope["mscale_all_dim"])
        length = keys.pop("rope.scaling.attn_factor", 1.0)
        length *= 1 + 0.1 * math.log(keys.get("rope.scaling.factor", 1.0))
        if abs(length - 1) > 1e-6:  # mscale is another one
            keys["rope.scaling.attn_factor"] = length
    return keys | _expert_keys(config, gating)


def _expert_keys(config: Config, gating: str) -> Keys:
    n_expert = config.get("n_routed_experts")
    kinds = config.get("mlp_layer_types") or []
    lead = int(config.get("first_k_dense_replace") or kinds.count("dense"))
    if kinds:
        check_config(config, mlp_layer_types=sorted(kinds))  # dense ones come first
    keys = {
        "expert_feed_forward_length": int(
            config.get("moe_intermediate_size") or config["intermediate_size"]
        ),
        "expert_shared_count": int(config.get("n_shared_experts") or 0),
        "leading_dense_block_count": lead,
    }
    if n_expert is None:
        return keys | {"leading_dense_block_count": int(config["num_hidden_layers"])}
    if config.get("n_group"):
        grouped = config.get("topk_method") != "greedy"
        keys["expert_group_count"] = int(config["n_group"]) if grouped else 1
        keys["expert_group_used_count"] = int(config["topk_group"]) if grouped else 1
    return keys | {
        "expert_count": int(n_expert),
        "expert_gating_func": GATINGS.index(config.get("scoring_func") or gating),
        "expert_weights_norm": bool(config.get("norm_topk_prob")),
        "expert_weights_scale": float32(config.get("routed_scaling_factor") or 1),
    }


def _keys(config: Config) -> Keys:
    v2 = config["architectures"] == ["DeepseekV2ForCausalLM"]
    return latent_keys(config, "softmax" if v2 else "sigmoid")


def change_latent(name: str, x: Array, config: Config) -> Tensors:
    """Order rotated rows for rope on adjacent pairs; split ``attn_kv_b``, its keys transposed.

    Shape:
        NumPy order, attn_kv_b [n_head * (n_nope + n_value), n_lora_kv] ->
        attn_k_b [n_head, n_lora_kv, n_nope], attn_v_b [n_head, n_value, n_lora_kv]
    """
    part, n_head = name.split(".")[-2], config["num_attention_heads"]
    if part == "attn_kv_b":
        keys, values = np.split(
            x.reshape(n_head, -1, x.shape[-1]), [config["qk_nope_head_dim"]], axis=1
        )
        return {
            name.replace("attn_kv_b", "attn_k_b"): keys.swapaxes(1, 2),
            name.replace("attn_kv_b", "attn_v_b"): values,
        }
    if part in ("attn_q", "attn_q_b", "attn_kv_a_mqa") and config.get("rope_interleave") is False:
        heads = x.reshape(1 if part == "attn_kv_a_mqa" else n_head, -1, *x.shape[1:])
        fixed, rotated = np.split(heads, [-config["qk_rope_head_dim"]], axis=1)
        pairs = np.stack(np.split(rotated, 2, axis=1), axis=2).reshape(rotated.shape)
        x = np.concatenate([fixed, pairs], axis=1).reshape(x.shape)
    return {name: x}


DENSE = {  # names of models without experts in Hugging Face's checkpoints
    **without(qwen2.CONVERT.tensors, "self_attn"),
    "model.layers.{i}.self_attn.q_proj.weight": "blk.{i}.attn_q.weight",
    "model.layers.{i}.self_attn.q_a_proj.*": "blk.{i}.attn_q_a.*",
    "model.layers.{i}.self_attn.q_a_layernorm.weight": "blk.{i}.attn_q_a_norm.weight",
    "model.layers.{i}.self_attn.q_b_proj.weight": "blk.{i}.attn_q_b.weight",
    "model.layers.{i}.self_attn.kv_a_proj_with_mqa.*": "blk.{i}.attn_kv_a_mqa.*",
    "model.layers.{i}.self_attn.kv_a_layernorm.weight": "blk.{i}.attn_kv_a_norm.weight",
    "model.layers.{i}.self_attn.kv_b_proj.weight": "blk.{i}.attn_kv_b.weight",
    "model.layers.{i}.self_attn.o_proj.*": "blk.{i}.attn_output.*",
}
NAMES = DENSE | qwen2moe.DEEPSEEK

CONVERT = Convert(
    models=(
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "KimiVLForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
        "YoutuForCausalLM",
        "YoutuVLForConditionalGeneration",
    ),
    tensors=NAMES,
    other_media=(*OTHER_MEDIA, "siglip2.*", "merger.*"),
    keys=_keys,
    change=change_latent,
    defaults={"rms_norm_eps": 1e-6},
    of_class={
        "DeepseekV3ForCausalLM": {"norm_topk_prob": True, "routed_scaling_factor": 2.5},
        "Glm4MoeLiteForCausalLM": {
            "norm_topk_prob": True,
            "rms_norm_eps": 1e-5,
            "routed_scaling_factor": 1.8,
        },
    },
)
