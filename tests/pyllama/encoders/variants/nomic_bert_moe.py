"""Variants of Nomic BERT with experts, which transformers lacks."""

from __future__ import annotations

from typing import Any

NAME = "nomic-bert-moe"
_MOE: dict[str, Any] = {
    "architectures": ["NomicBertModel"],
    "model_type": "nomic_bert",
    "activation_function": "gelu",
    "causal": False,
    "layer_norm_epsilon": 1e-5,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "moe_every_n_layers": 2,
    "moe_top_k": 2,
    "num_experts": 4,
    "n_embd": 64,
    "n_head": 4,
    "n_inner": 96,
    "n_layer": 4,
    "n_positions": 2048,
    "pad_token_id": 1,
    "prenorm": False,
    "qkv_proj_bias": True,
    "rotary_emb_base": 10000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "type_vocab_size": 1,
    "vocab_size": 512,
}
_OF_TRANSFORMERS: dict[str, Any] = {  # which llama.cpp's converter reads, else takes defaults for
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 16,
    "layer_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
VARIANTS = {
    "nomic-bert-moe": {**_MOE, **_OF_TRANSFORMERS},
    "nomic-bert-moe_every_3": {**_MOE, "moe_every_n_layers": 3, "moe_top_k": 1},
}
_SHARED = {
    "embeddings.word_embeddings.weight": [512, 64],
    "embeddings.token_type_embeddings.weight": [1, 64],
    "emb_ln.weight": [64],
    "emb_ln.bias": [64],
    "encoder.layers.{i}.attn.Wqkv.weight": [192, 64],
    "encoder.layers.{i}.attn.Wqkv.bias": [192],
    "encoder.layers.{i}.attn.out_proj.weight": [64, 64],
    "encoder.layers.{i}.attn.out_proj.bias": [64],
    "encoder.layers.{i}.norm1.weight": [64],
    "encoder.layers.{i}.norm1.bias": [64],
    "encoder.layers.{i}.norm2.weight": [64],
    "encoder.layers.{i}.norm2.bias": [64],
}
_DENSE = {"fc1.weight": [96, 64], "fc1.bias": [96], "fc2.weight": [64, 96], "fc2.bias": [64]}
_EXPERTS = {
    "router.layer.weight": [4, 64],
    "experts.mlp.w1": [384, 64],
    "experts.mlp.w2": [384, 64],
    "experts.bias": [64],
}


def _shapes(*expert_layers: int) -> dict[str, list[int]]:
    parts = {i: _EXPERTS if i in expert_layers else _DENSE for i in range(4)}
    mlps = {f"encoder.layers.{i}.mlp.{k}": x for i, part in parts.items() for k, x in part.items()}
    return {**_SHARED, **mlps}


SHAPES = {"nomic-bert-moe": _shapes(1, 3), "nomic-bert-moe_every_3": _shapes(1)}
_DEFAULTS = (
    "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.key_length", "attention.value_length", "attention.layer_norm_epsilon",
    "rope.freq_base",
)  # fmt: skip
DIFFERENT = {
    "nomic-bert-moe": ("context_length",),
    "nomic-bert-moe_every_3": ("context_length", *_DEFAULTS),
}
LLAMA_CPP = ("nomic-bert-moe", "nomic-bert-moe_every_3")
