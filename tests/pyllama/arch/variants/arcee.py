"""Tiny checkpoints of ``arcee``."""

from __future__ import annotations

from . import llama

VARIANTS = {
    "arcee": {
        **llama.VARIANTS["llama_yarn"],
        "architectures": ["ArceeForCausalLM"],
        "model_type": "arcee",
        "hidden_act": "relu2",
    }
}
LLAMA_CPP = ("arcee",)
