"""MiniMax-M2: norms of all queries and all keys together, sigmoid routing with a bias.

Source: MiniMax 2025, "MiniMax-M2"; llama.cpp, ``llama_model_minimax_m2``.
"""

from __future__ import annotations

from ..hparams import GATINGS, Key, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config
from . import llama, olmoe

NAME = "minimax-m2"

HPARAMS: Values = {
    "rope_neox": True,
    "expert_gating": Key("expert_gating_func", GATINGS.index("sigmoid")),
}

TENSORS = {**olmoe.TENSORS, "blk.{i}.exp_probs_b.bias": ("n_expert",)}

build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    check_config(config, scoring_func="sigmoid", use_qk_norm=True, qk_norm_type="per_layer")
    keys = base_keys(config, "silu")
    keys |= {
        "expert_feed_forward_length": int(config["intermediate_size"]),
        "expert_gating_func": GATINGS.index("sigmoid"),
    }
    if config.get("rotary_dim") and "rope.dimension_count" not in keys:
        keys["rope.dimension_count"] = int(config["rotary_dim"])
    return keys


CONVERT = Convert(
    models=("MiniMaxM2ForCausalLM",),
    tensors={
        **llama.CONVERT.tensors,
        "model.layers.{i}.self_attn.q_norm.weight": "blk.{i}.attn_q_norm.weight",
        "model.layers.{i}.self_attn.k_norm.weight": "blk.{i}.attn_k_norm.weight",
        "model.layers.{i}.block_sparse_moe.e_score_correction_bias": "blk.{i}.exp_probs_b.bias",
    },
    keys=_keys,
    defaults={
        "head_dim": 128,
        "num_experts_per_tok": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5000000.0,
    },
    prefix="model.",
)
