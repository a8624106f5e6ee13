"""Tiny checkpoints of ``arwkv7``: with a gate and the norm of heads, and without both."""

from __future__ import annotations

_GATED = {
    "architectures": ["RwkvHybridForCausalLM"],
    "model_type": "rwkv_hybrid",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "head_size": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": 512,
    "wkv_version": 7,
    "wkv_has_gate": True,
    "tie_word_embeddings": False,
}
VARIANTS = {"arwkv7": _GATED, "arwkv7_without_gate": {**_GATED, "wkv_has_gate": False}}

_L = "model.layers.{i}"
_T = f"{_L}.self_attn.time_mixer"


def _shapes(**ranks: int) -> dict[str, list[int]]:
    return {
        "model.embed_tokens.weight": [512, 64],
        f"{_L}.input_layernorm.weight": [64],
        f"{_L}.post_attention_layernorm.weight": [64],
        **{f"{_T}.x_{x}": [1, 1, 64] for x in ("r", "k", *ranks)},
        **{f"{_T}.{x}0": [1, 1, 64] for x in "wav"},
        **{f"{_T}.{x}1": [64, n] for x, n in ranks.items()},
        **{f"{_T}.{x}2": [n, 64] for x, n in ranks.items()},
        f"{_T}.k_k": [1, 1, 64],
        f"{_T}.k_a": [1, 1, 64],
        f"{_T}.r_k": [2, 32],
        **{f"{_T}.{x}.weight": [64, 64] for x in ("receptance", "key", "value", "output")},
        f"{_L}.mlp.gate_proj.weight": [160, 64],
        f"{_L}.mlp.up_proj.weight": [160, 64],
        f"{_L}.mlp.down_proj.weight": [64, 160],
        "model.norm.weight": [64],
        "lm_head.weight": [512, 64],
    }


SHAPES = {
    "arwkv7": {
        **_shapes(w=64, a=64, v=32, g=128),
        f"{_T}.ln_x.weight": [64],
        f"{_T}.ln_x.bias": [64],
    },
    "arwkv7_without_gate": _shapes(w=64, a=64, v=32),
}
LLAMA_CPP = ("arwkv7", "arwkv7_without_gate")
