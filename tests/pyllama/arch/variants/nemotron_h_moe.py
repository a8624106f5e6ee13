"""Tiny checkpoints of ``nemotron_h_moe``."""

from __future__ import annotations

from .nemotron_h import BASE

_BASE = {
    **BASE,
    "num_hidden_layers": 5,
    "hybrid_override_pattern": "MEM*E",
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "moe_intermediate_size": 96,
    "moe_shared_expert_intermediate_size": 128,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
}
VARIANTS = {
    "nemotron_h_moe": _BASE,
    "nemotron_h_moe_latent": {**_BASE, "moe_latent_size": 32},
}

LLAMA_CPP = ("nemotron_h_moe", "nemotron_h_moe_latent")
