"""Tiny checkpoints of ``mistral4``."""

from __future__ import annotations

from . import deepseek2, mistral3

_TEXT = {
    **{k: v for k, v in deepseek2.V3.items() if k not in ("scoring_func", "topk_method")},
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 0,
    "num_hidden_layers": 3,
    "qk_nope_head_dim": 16,
    "routed_scaling_factor": 1.0,
    "rope_parameters": mistral3.VARIANTS["mistral3"]["rope_parameters"],
}
VARIANTS = {
    "mistral4": {**_TEXT, "architectures": ["Mistral4ForCausalLM"], "model_type": "mistral4"},
    "mistral4_vision": {
        **mistral3.VARIANTS["mistral3_vision"],
        "text_config": {
            **{k: v for k, v in _TEXT.items() if k != "architectures"},
            "model_type": "mistral4",
        },
    },
}

LLAMA_CPP = ("mistral4", "mistral4_vision")
