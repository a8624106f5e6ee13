"""Tiny checkpoints of ``glm-dsa``."""

from __future__ import annotations

from . import deepseek32

NAME = "glm-dsa"
_GLM = {
    **deepseek32.VARIANTS["deepseek32"],
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "n_group": 1,
    "topk_group": 1,
    "rms_norm_eps": 1e-5,
    "indexer_types": ["full", "shared", "full"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
}
VARIANTS = {"glm-dsa": _GLM, "glm-dsa_chosen": {**_GLM, **deepseek32.CHOSEN}}

LLAMA_CPP = ("glm-dsa", "glm-dsa_chosen")
