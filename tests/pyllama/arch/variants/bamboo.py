"""Tiny checkpoints of ``bamboo``."""

from __future__ import annotations

from . import llama

VARIANTS = {
    "bamboo": llama.VARIANTS["llama"]
    | {"architectures": ["BambooForCausalLM"], "model_type": "bamboo", "hidden_act": "relu"},
    "turbosparse_mixtral": llama.VARIANTS["mixtral"]
    | {
        "architectures": ["TurboSparseMixtralForCausalLM"],
        "model_type": "turbosparsemixtral",
        "hidden_act": "relu",
    },
}
