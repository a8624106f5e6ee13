"""Phi-3.5-MoE: layer norms with biases, SparseMixer's routing between experts, longrope.

Source: Abdin et al. 2024, "Phi-3 Technical Report"; transformers, ``modeling_phimoe``; llama.cpp,
``llama_model_phimoe``, whose router is another one (it divides by the sum of the two weights).
"""

from __future__ import annotations

from ..graph.builder import ROPE_FACTORS
from ..graph.tensors import EXPERTS, tensors, without
from ..hparams import Key, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config
from . import llama, orion, starcoder2

_JITTER = 0.01  # ``router_jitter_noise`` of config.json

HPARAMS: Values = {
    "rope_neox": True,
    "n_swa": Key("attention.sliding_window", 0),
    "swa_period": 0,
    "router_jitter": _JITTER,
}

TENSORS = tensors(
    {
        **without(starcoder2.TENSORS, ".ffn_"),
        "blk.{i}.ffn_norm.*": ("n_embd",),
        **EXPERTS,
        **ROPE_FACTORS,
        "output.bias?": ("n_vocab",),
    }
)

build_graph = orion.build_graph


def _keys(config: Config) -> Keys:
    check_config(config, router_jitter_noise=_JITTER, num_experts_per_tok=2)
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if "short_mscale" in rope:  # transformers' magnitude, instead of longrope's own
        check_config(rope, long_mscale=rope["short_mscale"])
        rope["attention_factor"] = rope["short_mscale"]
    original = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
    return base_keys({**config, "rope_parameters": rope}, "silu") | {
        "rope.dimension_count": int(config["hidden_size"]) // int(config["num_attention_heads"]),
        "rope.scaling.original_context_length": int(original),
        "attention.sliding_window": int(config.get("sliding_window") or 0),
    }  # fmt: skip


CONVERT = Convert(
    models=("PhimoeForCausalLM", "PhiMoEForCausalLM"),
    tensors={
        **starcoder2.CONVERT.tensors,
        **{k: v for k, v in llama.CONVERT.tensors.items() if "block_sparse_moe" in k},
        "lm_head.bias": "output.bias",
    },
    keys=_keys,
    defaults={"rope_theta": 1000000.0},
)
