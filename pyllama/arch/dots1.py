"""dots.llm1: norms of the heads' queries and keys, sigmoid routing, shared experts, dense first.

Source: rednote-hilab 2025, "dots.llm1 Technical Report"; llama.cpp, ``llama_model_dots1``.
"""

from __future__ import annotations

from ..graph.tensors import DEEPSEEK_EXPERTS
from ..hparams import GATINGS, SHARED_SIZES, SIGMOID_ROUTER, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, float32, hidden_act
from . import qwen2, qwen2moe, qwen3

HPARAMS: Values = {
    **qwen2.HPARAMS,
    **SHARED_SIZES,
    **SIGMOID_ROUTER,
}

TENSORS = {**qwen3.TENSORS, **DEEPSEEK_EXPERTS}

build_graph = qwen3.build_graph


def expert_keys(config: Config) -> Keys:
    """The keys of a router with sigmoid gating, of shared experts and dense first layers."""
    return base_keys(config) | {
        "expert_count": int(config["n_routed_experts"]),
        "expert_group_count": int(config.get("n_group") or 1),
        "expert_group_used_count": int(config.get("topk_group") or 1),
        "expert_shared_count": int(config.get("n_shared_experts") or 0),
        "leading_dense_block_count": int(config.get("first_k_dense_replace") or 0),
        "expert_weights_scale": float32(config.get("routed_scaling_factor", 1.0)),
        "expert_weights_norm": bool(config["norm_topk_prob"]),
        "expert_gating_func": GATINGS.index("sigmoid"),
    }


def _keys(config: Config) -> Keys:
    first = int(config.get("max_window_layers", 62))
    windows = qwen2.windows(config, slides=lambda i: i >= first)
    return expert_keys(config) | hidden_act(config, "silu") | windows


CONVERT = Convert(
    models=("Dots1ForCausalLM",),
    tensors={**qwen3.CONVERT.tensors, **qwen2moe.DEEPSEEK},
    keys=_keys,
    defaults={"norm_topk_prob": False, "rms_norm_eps": 1e-6},
)
