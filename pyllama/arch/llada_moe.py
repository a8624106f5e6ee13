"""LLaDA-MoE: a mixture of experts without causality, a diffusion language model.

Queries and keys of each head are normalized; experts' weights are the router's probabilities.
Source: Zhu et al. 2025, "LLaDA-MoE: A Sparse MoE Diffusion Language Model"; llama.cpp,
``llama_model_llada_moe``.
"""

from __future__ import annotations

from ..hparams import DIFFUSION, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config
from . import qwen2moe, qwen3, qwen3moe

NAME = "llada-moe"

HPARAMS: Values = {
    "rope_neox": True,
    "expert_weights_norm": qwen2moe.HPARAMS["expert_weights_norm"],
    **DIFFUSION,
}
TENSORS = qwen3moe.TENSORS
build_graph = qwen3.build_graph


def _keys(config: Config) -> Keys:
    check_config(
        config, qk_layernorm=True, partial_rotary_factor=1, clip_qkv=None, attention_bias=False,
        moe_layer_freq=[1] * int(config["num_hidden_layers"]), routed_scaling_factor=1,
    )  # fmt: skip
    found = base_keys(config, "silu") | qwen2moe.norm_keys(config)
    if config.get("dense_intermediate_size"):
        found["feed_forward_length"] = int(config["dense_intermediate_size"])
    return found | {
        "expert_feed_forward_length": int(config["expert_intermediate_size"]),
        "attention.causal": False,
        "diffusion.shift_logits": False,
    }


CONVERT = Convert(
    models=("LLaDAMoEModelLM", "LLaDAMoEModel"),
    tensors=qwen3moe.CONVERT.tensors,
    keys=_keys,
    defaults={"mask_token_id": 156895},
)
