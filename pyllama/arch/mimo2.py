"""MiMo-V2: sinks and more key-value heads in windowed layers, scaled values, experts.

Layers of multi-token prediction are dense and have a window.
Source: Xiaomi 2025, "MiMo-V2-Flash Technical Report"; llama.cpp, ``llama_model_mimo2``.
"""

from __future__ import annotations

from functools import partial

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.decoder import pre_norm_decoder
from ..graph.tensors import EXPERTS, without
from ..hparams import GATINGS, Key, Values, window_values
from ..mapping.rules import Config, Convert, Keys, Nextn, base_keys, check_config, float32
from . import exaone_moe, qwen2, qwen2moe

HPARAMS: Values = {
    "rope_neox": True,
    **window_values(1, base=10000.0),
    "value_scale": Key("attention.value_scale", 1.0),
    "expert_gating": GATINGS.index("sigmoid"),
}

TENSORS = {
    **without(qwen2.TENSORS, "rope_f"),
    "blk.{i}.attn_sinks.weight?": ("n_head",),
    **EXPERTS,
    "blk.{i}.exp_probs_b.bias?": ("n_expert",),
}


MTP = Nextn(
    hparams={"hidden": "l_out-0"},
    names={"pre_mlp_layernorm.": "post_attention_layernorm."},
    layer=lambda config, i: {"attention.sliding_window_pattern": True},
)


def _attention(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    return ops.scale(b.ctx, b.self_attention(x, i), b.hparams.own["value_scale"])


build_graph = partial(pre_norm_decoder, attention=_attention)


def _keys(config: Config) -> Keys:
    head_dim, heads = int(config["head_dim"]), int(config["num_key_value_heads"])
    check_config(
        config, attention_bias=False, n_group=1, topk_group=1, norm_topk_prob=True,
        routed_scaling_factor=1.0, swa_head_dim=head_dim, swa_v_head_dim=config["v_head_dim"],
        swa_num_attention_heads=config["num_attention_heads"],
    )  # fmt: skip
    slides = [bool(x) for x in config["hybrid_layer_pattern"]]
    sparse = ["sparse" if x else "dense" for x in config["moe_layer_freq"]]
    window = config.get("sliding_window_size")  # tokens before the token's own
    keys = base_keys(config, "silu")
    return keys | {
        "attention.layer_norm_rms_epsilon": float32(config.get("layernorm_epsilon", 1e-5)),
        "attention.head_count_kv": [
            int(config["swa_num_key_value_heads"]) if sliding else heads for sliding in slides
        ],
        "attention.sliding_window": int(config["sliding_window"] if window is None else window + 1),
        "attention.sliding_window_pattern": slides,
        "attention.value_length": int(config["v_head_dim"]),
        "attention.value_scale": float32(config.get("attention_value_scale") or 1.0),
        "rope.dimension_count": int(head_dim * float(config["partial_rotary_factor"])),
        "rope.freq_base": float(config["rope_theta"]),
        "rope.freq_base_swa": float(config["swa_rope_theta"]),
        "expert_count": int(config["n_routed_experts"]),
        "leading_dense_block_count": exaone_moe.dense_lead({"mlp_layer_types": sparse}),
    }


CONVERT = Convert(
    models=("MiMoV2FlashForCausalLM",),
    tensors={
        **qwen2.CONVERT.tensors,
        **qwen2moe.DEEPSEEK,
        "model.layers.{i}.self_attn.attention_sink_bias": "blk.{i}.attn_sinks.weight",
        "model.layers.{i}.self_attn.sinks": "blk.{i}.attn_sinks.weight",
    },
    keys=_keys,
)
