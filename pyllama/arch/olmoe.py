"""OLMoE: a mixture of small experts, and norms of the queries and keys of all heads together.

Source: Muennighoff et al. 2024, "OLMoE: Open Mixture-of-Experts Language Models"; llama.cpp,
``llama_model_olmoe``.
"""

from __future__ import annotations

from ..graph.tensors import EXPERTS
from ..hparams import Key, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config
from . import llama, qwen2, qwen2moe

HPARAMS: Values = {"rope_neox": True, "expert_weights_norm": Key("expert_weights_norm", False)}

TENSORS = {
    **qwen2.TENSORS,
    "blk.{i}.attn_q_norm.weight": ("n_embd_q",),
    "blk.{i}.attn_k_norm.weight": ("n_embd_k",),
    **EXPERTS,
}

build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    check_config(config, clip_qkv=None, attention_bias=False)
    return base_keys(config, "silu") | qwen2moe.norm_keys(config)


CONVERT = Convert(
    models=("OlmoeForCausalLM",),
    tensors={
        **qwen2.CONVERT.tensors,
        **qwen2moe.ROUTED,
        "model.layers.{i}.self_attn.q_norm.weight": "blk.{i}.attn_q_norm.weight",
        "model.layers.{i}.self_attn.k_norm.weight": "blk.{i}.attn_k_norm.weight",
    },
    keys=_keys,
    defaults={"rms_norm_eps": 1e-5},
)
