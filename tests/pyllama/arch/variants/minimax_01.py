"""Tiny checkpoints of ``minimax-01``: the eighth of nine layers has full attention."""

from __future__ import annotations

NAME = "minimax-01"

_N_LAYER, _FULL = 9, 7
_BASE = {
    "architectures": ["MiniMaxText01ForCausalLM"],
    "model_type": "minimax_text_01",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": _N_LAYER,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rotary_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000000,
    "hidden_act": "silu",
    "postnorm": True,
    "shared_intermediate_size": 0,
    "attn_type_list": [int(i == _FULL) for i in range(_N_LAYER)],
    **{
        f"layernorm_{part}_{name}": value
        for part in ("full_attention", "linear_attention", "mlp")
        for name, value in (("alpha", 3.5), ("beta", 1.0))
    },
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}
VARIANTS = {"minimax_01": _BASE}

_L = "model.layers.{i}"
_LINEAR = {
    "self_attn.qkv_proj.weight": [384, 64],
    "self_attn.norm.weight": [128],
    "self_attn.output_gate.weight": [128, 64],
    "self_attn.out_proj.weight": [64, 128],
}
_ATTENTION = {
    "self_attn.q_proj.weight": [128, 64],
    "self_attn.k_proj.weight": [64, 64],
    "self_attn.v_proj.weight": [64, 64],
    "self_attn.o_proj.weight": [64, 128],
}
SHAPES = {
    "minimax_01": {
        "model.embed_tokens.weight": [512, 64],
        f"{_L}.input_layernorm.weight": [64],
        **{
            f"model.layers.{i}.{name}": shape
            for i in range(_N_LAYER)
            for name, shape in (_ATTENTION if i == _FULL else _LINEAR).items()
        },
        f"{_L}.post_attention_layernorm.weight": [64],
        f"{_L}.block_sparse_moe.gate.weight": [4, 64],
        f"{_L}.block_sparse_moe.experts.{{e}}.w1.weight": [96, 64],
        f"{_L}.block_sparse_moe.experts.{{e}}.w2.weight": [64, 96],
        f"{_L}.block_sparse_moe.experts.{{e}}.w3.weight": [96, 64],
        "model.norm.weight": [64],
        "lm_head.weight": [512, 64],
    }
}
LLAMA_CPP = ("minimax_01",)
