"""EXAONE-MoE (K-EXAONE): rope only in windowed layers, norms of heads, experts after dense layers.

Source: LG AI Research 2025, "K-EXAONE Technical Report"; llama.cpp, ``llama_model_exaone_moe``.
"""

from __future__ import annotations

from ..graph.tensors import DEEPSEEK_EXPERTS
from ..hparams import GATINGS, SIGMOID_ROUTER, Key, Values, nope_without_window, window_values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config, float32, window_keys
from . import llama, qwen2moe, qwen3

NAME = "exaone-moe"


HPARAMS: Values = {
    "rope_neox": True,
    **window_values(4, 128),
    "nope_layers": nope_without_window,
    "n_ff_shexp": Key("expert_shared_feed_forward_length", 0),
    **SIGMOID_ROUTER,
}

TENSORS = {**qwen3.TENSORS, **DEEPSEEK_EXPERTS}

build_graph = llama.build_graph


def dense_lead(config: Config) -> int:
    """The number of first layers without experts; the others must have some."""
    kinds = config.get("mlp_layer_types")
    if kinds is None:
        return int(config.get("first_k_dense_replace") or 0)
    n = next((i for i, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    check_config(config, mlp_layer_types=["dense"] * n + ["sparse"] * (len(kinds) - n))
    return n


def _keys(config: Config) -> Keys:
    n_exp = int(config["moe_intermediate_size"])
    shared = int(config["num_shared_experts"])
    return (
        {"rope.scaling.type": "none"}
        | base_keys(config, "silu")
        | window_keys(config, 4)
        | {
            "leading_dense_block_count": dense_lead(config),
            "expert_group_count": int(config.get("n_group") or 1),
            "expert_group_used_count": int(config.get("topk_group") or 1),
            "expert_shared_count": shared,
            "expert_shared_feed_forward_length": n_exp * shared,
            "expert_gating_func": GATINGS.index("sigmoid"),
            "expert_weights_scale": float32(config["routed_scaling_factor"]),
            "expert_weights_norm": bool(config["norm_topk_prob"]),
            "nextn_predict_layers": 0,  # layers that predict more tokens are left out
        }
    )


CONVERT = Convert(
    models=("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
    tensors={
        **qwen3.CONVERT.tensors,
        **qwen2moe.DEEPSEEK,
        "model.layers.{i}.mlp.e_score_correction_bias": "blk.{i}.exp_probs_b.bias",
    },
    keys=_keys,
    defaults={"sliding_window": 4096},
    ignored=(*Convert.ignored, "mtp.*"),
)
