"""Tiny checkpoints of ``bitnet``; transformers has it, but does not round the weights."""

from __future__ import annotations

from . import llama, xverse

VARIANTS = {
    "bitnet": {
        **llama.VARIANTS["llama"],
        "architectures": ["BitnetForCausalLM"],
        "model_type": "llama",
        "num_key_value_heads": 4,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }
}
SHAPES = {
    "bitnet": {
        **{k: v for k, v in xverse.SHAPES["xverse"].items() if k != "lm_head.weight"},
        "model.layers.{i}.self_attn.inner_attn_ln.weight": [64],
        "model.layers.{i}.mlp.ffn_layernorm.weight": [160],
    }
}
LLAMA_CPP = ("bitnet",)
