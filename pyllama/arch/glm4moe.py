"""GLM-4.5, GLM-4.6, Solar Open: dense first layers, then sigmoid routing and shared experts.

Source: GLM-4.5 Team 2025, "GLM-4.5: Agentic, Reasoning, and Coding Foundation Models"; llama.cpp,
``llama_model_glm4_moe``.
"""

from __future__ import annotations

from ..hparams import Values
from ..mapping.rules import Config, Convert, Keys, Nextn, hidden_act
from . import dots1, qwen2moe, qwen3, seed_oss

HPARAMS: Values = dots1.HPARAMS

TENSORS = {
    {
        "blk.{i}.ffn_norm.weight": "blk.{i}.post_attention_norm.weight",
        "blk.{i}.attn_q_norm.weight": "blk.{i}.attn_q_norm.weight?",
        "blk.{i}.attn_k_norm.weight": "blk.{i}.attn_k_norm.weight?",
    }.get(name, name): sizes
    for name, sizes in dots1.TENSORS.items()
}


MTP = Nextn()

build_graph = seed_oss.build_graph


def _keys(config: Config) -> Keys:
    if config.get("model_type") != "solar_open":
        config = {"partial_rotary_factor": 0.5, **config}
    keys = dots1.expert_keys(config) | hidden_act(config, "silu")
    return keys | {"nextn_predict_layers": 0}  # unless the checkpoint has them


CONVERT = Convert(
    models=("Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration", "SolarOpenForCausalLM"),
    tensors={
        **qwen3.CONVERT.tensors,
        **qwen2moe.DEEPSEEK,
        "model.layers.{i}.post_attention_layernorm.weight": "blk.{i}.post_attention_norm.weight",
    },
    keys=_keys,
    defaults={"norm_topk_prob": True},
    of_class={"SolarOpenForCausalLM": {"head_dim": 128, "rope_theta": 1000000.0}},
)
