"""Tiny checkpoints of ``hy_v4``."""

from __future__ import annotations

from typing import Any

from . import deepseek32

_DENSE, _INDEXED = (0,), (0, 2)  # layers without experts; layers with an indexer

VARIANTS: dict[str, dict[str, Any]] = {
    "hy_v4": {
        **deepseek32.VARIANTS["deepseek32"],
        "architectures": ["HYV4ForCausalLM"],
        "model_type": "hy_v4",
        "n_group": 1,
        "topk_group": 1,
        "rms_norm_eps": 1e-5,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "indexer_types": ["full", "shared", "full"],
        "index_topk": 128,
        "hc_mult": 3,
        "hc_magnitude": 2.0,
        "hc_eps": 1e-6,
        "swiglu_limit": 0.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "pad_token_id": None,
        "tie_word_embeddings": False,
    },
}
VARIANTS["hy_v4_chosen"] = {
    **VARIANTS["hy_v4"],
    "index_topk": 12,
    "index_n_heads": 16,
}  # of more tokens

LLAMA_CPP = ("hy_v4", "hy_v4_chosen")


def _of_layer(i: int, n_heads: int) -> dict[str, list[int]]:
    """The parameters of a layer, of which transformers 5.24 rotates halves, llama.cpp pairs."""
    parts = {
        "input_layernorm.weight": [64],
        "post_attention_layernorm.weight": [64],
        **{
            f"hc_{part}_layer.hc_pre.hc_{name}": shape
            for part in ("attn", "mlp")
            for name, shape in (("fn", [6, 192]), ("base", [6]), ("scale", [2]))
        },
    }
    attention = {
        "q_a_proj.weight": [48, 64],
        "q_a_layernorm.weight": [48],
        "q_b_proj.weight": [192, 48],
        "kv_a_proj_with_mqa.weight": [80, 64],
        "kv_a_layernorm.weight": [64],
        "kv_b_proj.weight": [256, 64],
        "o_proj.weight": [64, 128],
        "linear_gate.weight": [128, 64],
        "learnable_sink_param": [4],
    }
    if i in _INDEXED:
        attention |= {
            "indexer.wq_b.weight": [64 * n_heads, 48],
            "indexer.wk.weight": [64, 64],
            "indexer.k_norm.weight": [64],
            "indexer.k_norm.bias": [64],
            "indexer.weights_proj.weight": [n_heads, 64],
        }
    prefix, n_ff = ("mlp.", 160) if i in _DENSE else ("mlp.shared_experts.", 96)
    gated = {"gate_proj": [n_ff, 64], "up_proj": [n_ff, 64], "down_proj": [64, n_ff]}
    parts |= {f"{prefix}{name}.weight": shape for name, shape in gated.items()}
    if i not in _DENSE:
        parts |= {
            "mlp.gate.weight": [8, 64],
            "mlp.gate.e_score_correction_bias": [8],
            "mlp.experts.gate_up_proj": [8, 192, 64],
            "mlp.experts.down_proj": [8, 64, 96],
        }
    parts |= {f"self_attn.{name}": shape for name, shape in attention.items()}
    return {f"model.layers.{i}.{name}": shape for name, shape in parts.items()}


def _shapes(n_heads: int) -> dict[str, list[int]]:
    return {
        "model.embed_tokens.weight": [512, 64],
        **_of_layer(0, n_heads),
        **_of_layer(1, n_heads),
        **_of_layer(2, n_heads),
        "model.hc_head.hc_head_fn": [3, 192],
        "model.hc_head.hc_head_base": [3],
        "model.hc_head.hc_head_scale": [1],
        "model.norm.weight": [64],
        "lm_head.weight": [512, 64],
    }


SHAPES = {name: _shapes(config["index_n_heads"]) for name, config in VARIANTS.items()}
