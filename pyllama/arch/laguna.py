"""Laguna: gated attention, other heads and rope in windowed layers, experts after dense layers.

Source: poolside 2026, "Laguna"; llama.cpp, ``llama_model_laguna``.
"""

from __future__ import annotations

from functools import partial

from ..graph.sparse.weights import ANY
from ..graph.tensors import DEEPSEEK_EXPERTS, without
from ..hparams import GATINGS, SIGMOID_ROUTER, Key, Values, window_values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config, float32
from . import exaone_moe, llama, qwen2moe, qwen3

HPARAMS: Values = {
    "rope_neox": True,
    **window_values(4, 0, base=0.0),
    "swa_dense_first": True,
    "n_ff_shexp": Key("expert_shared_feed_forward_length"),
    **SIGMOID_ROUTER,
}

TENSORS = {
    **without(qwen3.TENSORS, "rope_f"),
    "blk.{i}.attn_gate.weight": ("n_embd", ANY),  # a row for each head, or for each element
    **DEEPSEEK_EXPERTS,
}

build_graph = partial(llama.decoder, act="silu", gate="softplus")


def rotated_keys(config: Config) -> dict[str, int]:
    """The keys of the rotated columns of a head, of which layers with a window may have others."""
    kinds, rope = {"full_attention": "", "sliding_attention": "_swa"}, config["rope_parameters"]
    return {
        f"rope.dimension_count{end}": int(
            config["head_dim"] * float(rope[kind].get("partial_rotary_factor", 1.0))
        )
        for kind, end in kinds.items()
        if kind in rope
    }


def _keys(config: Config) -> Keys:
    check_config(
        config,
        attention_bias=False,
        moe_apply_router_weight_on_input=False,
        moe_router_logit_softcapping=0.0,
    )
    n_layer = int(config["num_hidden_layers"])
    heads = config.get("num_attention_heads_per_layer")
    keys = base_keys(config, "silu") | rotated_keys(config)
    keys |= {
        "attention.head_count": [
            int(n) for n in heads or [config["num_attention_heads"]] * n_layer
        ],
        "expert_shared_feed_forward_length": int(config["shared_expert_intermediate_size"]),
        "expert_weights_norm": True,
        "expert_weights_scale": float32(config["moe_routed_scaling_factor"]),
        "expert_gating_func": GATINGS.index("sigmoid"),
        "leading_dense_block_count": exaone_moe.dense_lead(config),
    }
    if config.get("sliding_window"):
        slides = [kind == "sliding_attention" for kind in config["layer_types"]]
        keys["attention.sliding_window"] = int(config["sliding_window"])
        if slides != [i % 4 != 0 for i in range(n_layer)]:  # llama.cpp's default
            keys["attention.sliding_window_pattern"] = slides
    return keys


CONVERT = Convert(
    models=("LagunaForCausalLM",),
    tensors={
        **qwen3.CONVERT.tensors,
        **qwen2moe.DEEPSEEK,
        **qwen2moe.shared("shared_expert"),
        "model.layers.{i}.self_attn.g_proj.weight": "blk.{i}.attn_gate.weight",
        "model.layers.{i}.mlp.experts.e_score_correction_bias": "blk.{i}.exp_probs_b.bias",
    },
    keys=_keys,
    defaults={"rms_norm_eps": 1e-6},
)
