"""Tiny checkpoints of ``rwkv7``: with names of flash-linear-attention, and of RWKV's own code."""

from __future__ import annotations

_FLA = {
    "architectures": ["RWKV7ForCausalLM"],
    "model_type": "rwkv7",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "head_dim": 32,
    "norm_eps": 1e-5,
    "decay_low_rank_dim": 16,
    "a_low_rank_dim": 24,
    "v_low_rank_dim": 8,
    "gate_low_rank_dim": 40,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}
_OWN = {
    **{k: v for k, v in _FLA.items() if "rank" not in k and k not in ("norm_eps", "head_dim")},
    "architectures": ["Rwkv7ForCausalLM"],
    "head_size": 64,
    "layer_norm_epsilon": 1e-5,
    "lora_rank_decay": None,  # 32
    "lora_rank_iclr": None,
    "lora_rank_value_residual_mix": 16,
    "lora_rank_gate": 64,
}
VARIANTS = {"rwkv7": _FLA, "rwkv7_own_names": _OWN}

_NORMS = {
    f"{name}.{end}": [64]
    for name in ("attn_norm", "ffn_norm", "attn.g_norm")
    for end in ("weight", "bias")
}
_OWN_RANKS = {"w": 32, "a": 32, "v": 16, "g": 64}
SHAPES = {
    "rwkv7": {
        "model.embeddings.weight": [512, 64],
        "model.layers.0.pre_norm.weight": [64],
        "model.layers.0.pre_norm.bias": [64],
        **{f"model.layers.{{i}}.{name}": shape for name, shape in _NORMS.items()},
        **{f"model.layers.{{i}}.attn.x_{x}": [1, 1, 64] for x in "rwkvag"},
        "model.layers.{i}.attn.k_k": [64],
        "model.layers.{i}.attn.k_a": [64],
        "model.layers.{i}.attn.r_k": [2, 32],
        **{f"model.layers.{{i}}.attn.{x}_proj.weight": [64, 64] for x in "rkvo"},
        **{
            name: shape
            for part, rank in (("w", 16), ("a", 24), ("v", 8), ("g", 40))
            for i in range(part == "v", 3)
            for name, shape in (
                (f"model.layers.{i}.attn.{part}_lora.lora.0.weight", [rank, 64]),
                (f"model.layers.{i}.attn.{part}_lora.lora.2.weight", [64, rank]),
                (f"model.layers.{i}.attn.{part}_lora.lora.2.bias", [64]),
            )
            if part != "g" or "bias" not in name
        },
        "model.layers.{i}.ffn.x_k": [64],
        "model.layers.{i}.ffn.key.weight": [160, 64],
        "model.layers.{i}.ffn.value.weight": [64, 160],
        "model.norm.weight": [64],
        "model.norm.bias": [64],
        "lm_head.weight": [512, 64],
    },
    "rwkv7_own_names": {
        "model.embeddings.weight": [512, 64],
        **{
            f"model.{name}.{end}": [64]
            for name in ("pre_ln", "layers.{i}.ln1", "layers.{i}.ln2", "layers.{i}.attention.ln_x")
            for end in ("weight", "bias")
        },
        **{f"model.layers.{{i}}.attention.x_{x}": [1, 1, 64] for x in "rwkvag"},
        "model.layers.{i}.attention.k_k": [1, 1, 64],
        "model.layers.{i}.attention.k_a": [1, 1, 64],
        "model.layers.{i}.attention.r_k": [1, 64],
        **{f"model.layers.{{i}}.attention.{x}0": [1, 1, 64] for x in "wav"},
        **{f"model.layers.{{i}}.attention.{x}1": [64, n] for x, n in _OWN_RANKS.items()},
        **{f"model.layers.{{i}}.attention.{x}2": [n, 64] for x, n in _OWN_RANKS.items()},
        **{
            f"model.layers.{{i}}.attention.{x}.weight": [64, 64]
            for x in ("receptance", "key", "value", "output")
        },
        "model.layers.{i}.feed_forward.x_k": [1, 1, 64],
        "model.layers.{i}.feed_forward.key.weight": [160, 64],
        "model.layers.{i}.feed_forward.value.weight": [64, 160],
        "model.ln_out.weight": [64],
        "model.ln_out.bias": [64],
        "head.weight": [512, 64],
    },
}
LLAMA_CPP = ("rwkv7", "rwkv7_own_names")
