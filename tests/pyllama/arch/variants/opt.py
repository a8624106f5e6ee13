"""Tiny checkpoints of ``opt``."""

from __future__ import annotations

VARIANTS = {
    "opt": {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": 64,
        "word_embed_proj_dim": 64,
        "ffn_dim": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "bos_token_id": 2,
        "eos_token_id": 2,
    },
}
VARIANTS["opt_post_norm"] = VARIANTS["opt"] | {
    "word_embed_proj_dim": 32,
    "do_layer_norm_before": False,
}
VARIANTS["opt_no_bias"] = VARIANTS["opt"] | {"enable_bias": False, "activation_function": "gelu"}
