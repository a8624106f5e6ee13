"""Tiny checkpoints of ``hrm_text``: stacks of two layers, and of one with other cycles."""

from __future__ import annotations

_BASE = {
    "architectures": ["HrmTextForCausalLM"],
    "model_type": "hrm_text",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "H_cycles": 2,
    "L_cycles": 3,
    "embedding_scale": 8.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
VARIANTS = {
    "hrm_text": _BASE,
    "hrm_text_one_layer": {
        **_BASE, "num_hidden_layers": 1, "head_dim": 32, "H_cycles": 1, "L_cycles": 2,
        "embedding_scale": 0.25, "tie_word_embeddings": True, "prefix_lm": False,
    },
}  # fmt: skip
LLAMA_CPP = ("hrm_text", "hrm_text_one_layer")
