"""Configurations of tiny checkpoints of diffusion language models.

    VARIANTS["dream"]["dream"]                     # a config.json
    REFERENCE["dream"]                             # of the model of transformers that it is

transformers lacks them, but has each with causality; ``is_causal`` of the configuration removes it.
``RENAMED`` are parts of parameters' names in transformers, with those of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MASK = 500  # the token that stands for one that is not known yet
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3}
_QWEN3_MOE = {
    **_SIZES, **_EXPERTS, "model_type": "qwen3_moe", "head_dim": 16, "moe_intermediate_size": 96,
    "is_causal": False,
}  # fmt: skip
_LLADA = {
    "architectures": ["LLaDAModelLM"],
    "model_type": "llada",
    "block_type": "llama",
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "d_model": 64,
    "mlp_hidden_size": 160,
    "n_layers": 3,
    "n_heads": 4,
    "n_kv_heads": 4,
    "max_sequence_length": 256,
    "vocab_size": 512,
    "embedding_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope": True,
    "alibi": False,
    "mask_token_id": MASK,
}
_GROUPED = {**_LLADA, "n_kv_heads": 2}
VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "dream": {
        "dream": {
            **_SIZES, "architectures": ["DreamModel"], "model_type": "Dream", "mask_token_id": MASK,
            "use_sliding_window": False,
        },
    },
    "llada": {"llada": _LLADA, "llada_grouped": _GROUPED},
    "llada-moe": {
        "llada-moe": {
            **{k: v for k, v in _SIZES.items() if k != "intermediate_size"}, **_EXPERTS,
            "architectures": ["LLaDAMoEModelLM"], "model_type": "llada",
            "dense_intermediate_size": 160, "expert_intermediate_size": 96, "qk_layernorm": True,
            "moe_layer_freq": [1, 1, 1], "norm_topk_prob": None, "partial_rotary_factor": 1,
            "mask_token_id": MASK,
        },
    },
    "rnd1": {
        "rnd1": {
            **_SIZES, **_EXPERTS, "architectures": ["RND1"], "model_type": "rnd1", "head_dim": 16,
            "moe_intermediate_size": 96, "norm_topk_prob": True, "mask_token_id": MASK,
        },
    },
}  # fmt: skip
REFERENCE: Mapping[str, dict[str, Any]] = {
    "dream": {**_SIZES, "model_type": "qwen2", "is_causal": False},
    "llada": {**_SIZES, "model_type": "llama", "num_key_value_heads": 4, "is_causal": False},
    "llada_grouped": {**_SIZES, "model_type": "llama", "is_causal": False},
    "llada-moe": {**_QWEN3_MOE, "norm_topk_prob": False},
    "rnd1": {**_QWEN3_MOE, "norm_topk_prob": True},
}
_OF_LLADA = {
    "model.embed_tokens": "model.transformer.wte",
    "model.layers": "model.transformer.blocks",
    "self_attn.o_proj": "attn_out",
    "self_attn.": "",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
    "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out",
}
RENAMED: Mapping[str, Mapping[str, str]] = {"llada": _OF_LLADA, "llada_grouped": _OF_LLADA}
