"""DeepSeek-OCR (text): DeepSeek-MoE's graph with rope on halves.

Source: DeepSeek-AI 2025, "DeepSeek-OCR"; llama.cpp, ``llama_model_deepseek2ocr``.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.tensors import DEEPSEEK_EXPERTS, without
from ..hparams import Key, Values
from ..mapping.rules import Config, Keys, base_keys, check_config, float32
from . import deepseek, llama, qwen2

NAME = "deepseek2-ocr"

HPARAMS: Values = {
    **deepseek.HPARAMS,
    "rope_neox": True,
    "n_rot_arr": lambda got: got["head_dim_arr"],  # files have a number that is not used
    "expert_weights_norm": Key("expert_weights_norm", False),
}

TENSORS = {**without(qwen2.TENSORS, "rope_f", ".bias"), **DEEPSEEK_EXPERTS}

build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    check_config(
        config, use_mla=False, moe_layer_freq=1, topk_method="greedy", scoring_func="softmax",
        rope_theta=10000.0, rope_scaling=None,
    )  # fmt: skip
    return base_keys(config, "silu") | {
        "rope.freq_base": 10000.0,
        "rope.dimension_count": int(config["qk_rope_head_dim"]),
        "vocab_size": int(config["vocab_size"]),
        "expert_shared_count": int(config["n_shared_experts"]),
        "expert_weights_scale": float32(config.get("routed_scaling_factor") or 1.0),
        "leading_dense_block_count": int(config["first_k_dense_replace"]),
        **({"expert_weights_norm": True} if config.get("norm_topk_prob") else {}),
    }


CONVERT = replace(
    deepseek.CONVERT,
    models=("DeepseekOCRForCausalLM", "UnlimitedOCRForCausalLM"),
    keys=_keys,
    change=qwen2.CONVERT.change,
    defaults={"rms_norm_eps": 1e-6},
    other_media=("*sam_model.*", "*vision_model.*", "*projector.*", "model.image_newline",
                 "model.view_seperator"),
)  # fmt: skip
