"""Tiny checkpoints of ``mellum``."""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "architectures": ["MellumForCausalLM"],
    "model_type": "mellum",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 96,
    "sliding_window": 16,
    "layer_types": ["full_attention", *["sliding_attention"] * 3],
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
}


def _ropes(theta: float) -> dict[str, Any]:
    sliding = {"rope_type": "default", "rope_theta": theta}
    return {"rope_parameters": {"full_attention": _YARN, "sliding_attention": sliding}}


VARIANTS = {
    "mellum": {**_BASE, **_ropes(500000.0)},
    "mellum_two_bases": {**_BASE, **_ropes(10000.0)},
}
LLAMA_CPP = ("mellum",)  # it rotates windows by the other layers' base
