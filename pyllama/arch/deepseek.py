"""DeepSeek-MoE (V1): LLaMA with dense first layers, then small experts and shared ones.

Source: Dai et al. 2024, "DeepSeekMoE: Towards Ultimate Expert Specialization"; llama.cpp,
``llama_model_deepseek``.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.tensors import SHARED_EXPERTS
from ..hparams import GATINGS, SHARED_SIZES, Values
from ..mapping.rules import Config, Keys, check_config, float32
from . import llama, qwen2moe

HPARAMS: Values = {
    **SHARED_SIZES,
    "expert_weights_norm": False,
}

TENSORS = {**llama.TENSORS, **SHARED_EXPERTS}

build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    check_config(
        config, norm_topk_prob=False, scoring_func="softmax", moe_layer_freq=1, rope_scaling=None
    )
    return llama.CONVERT.keys(config) | {
        "rope.scaling.type": "none",
        "expert_gating_func": GATINGS.index("softmax"),
        "expert_shared_count": int(config["n_shared_experts"]),
        "expert_weights_scale": float32(1),
        "leading_dense_block_count": int(config["first_k_dense_replace"]),
    }


CONVERT = replace(
    llama.CONVERT,
    models=("DeepseekForCausalLM",),
    tensors={
        **llama.CONVERT.tensors,
        **qwen2moe.ROUTED,
        **qwen2moe.shared("shared_experts"),
    },
    keys=_keys,
)
