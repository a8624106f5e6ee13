"""Tiny checkpoints of ``openelm``."""

from __future__ import annotations

VARIANTS = {
    "openelm": {
        "architectures": ["OpenELMForCausalLM"],
        "model_type": "openelm",
        "model_dim": 64,
        "head_dim": 16,
        "num_transformer_layers": 3,
        "num_query_heads": [2, 2, 4],
        "num_kv_heads": [1, 1, 2],
        "ffn_multipliers": [1.0, 1.5, 2.5],
        "ffn_dim_divisor": 32,
        "ffn_with_glu": True,
        "normalize_qk_projections": True,
        "share_input_output_layers": True,
        "activation_fn_name": "swish",
        "max_context_length": 256,
        "rope_freq_constant": 10000,
        "vocab_size": 512,
        "num_hidden_layers": 3,
    }
}

_LAYERS = {
    f"transformer.layers.{i}.{name}.weight": shape
    for i, (q, kv, n_ff) in enumerate(((2, 1, 64), (2, 1, 96), (4, 2, 160)))
    for name, shape in {
        "attn.qkv_proj": [16 * (q + 2 * kv), 64],
        "attn.out_proj": [64, 16 * q],
        "ffn.proj_1": [2 * n_ff, 64],
        "ffn.proj_2": [64, n_ff],
    }.items()
}
SHAPES = {
    "openelm": {
        "transformer.token_embeddings.weight": [512, 64],
        "transformer.layers.{i}.attn_norm.weight": [64],
        "transformer.layers.{i}.attn.q_norm.weight": [16],
        "transformer.layers.{i}.attn.k_norm.weight": [16],
        "transformer.layers.{i}.ffn_norm.weight": [64],
        **_LAYERS,
        "transformer.norm.weight": [64],
    }
}
LLAMA_CPP = ("openelm",)
