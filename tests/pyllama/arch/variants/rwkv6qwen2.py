"""Tiny checkpoints of ``rwkv6qwen2``: with shared keys and biases, and without both."""

from __future__ import annotations

_SHARED = {
    "architectures": ["RWKV6Qwen2ForCausalLM"],
    "model_type": "rwkv6qwen2",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "lora_rank_tokenshift": 24,
    "lora_rank_decay": 40,
    "rms_norm_eps": 1e-5,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}
_OWN_KEYS = {
    **{k: v for k, v in _SHARED.items() if "rank" not in k},
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
VARIANTS = {"rwkv6qwen2": _SHARED, "rwkv6qwen2_own_keys": _OWN_KEYS}

_L = "model.layers.{i}"
_T = f"{_L}.self_attn"


def _shapes(n_key: int, rank: int, decay_rank: int) -> dict[str, list[int]]:
    return {
        "model.embed_tokens.weight": [512, 64],
        f"{_L}.input_layernorm.weight": [64],
        f"{_L}.post_attention_layernorm.weight": [64],
        **{f"{_T}.time_maa_{x}": [1, 1, 64] for x in "xrkvwg"},
        f"{_T}.time_maa_w1": [64, 5 * rank],
        f"{_T}.time_maa_w2": [5, rank, 64],
        f"{_T}.time_decay": [1, 1, 64],
        f"{_T}.time_decay_w1": [64, decay_rank],
        f"{_T}.time_decay_w2": [decay_rank, 64],
        **{f"{_T}.{x}_proj.weight": [n_key if x in "kv" else 64, 64] for x in "qkvo"},
        f"{_T}.gate.weight": [64, 64],
        f"{_L}.mlp.gate_proj.weight": [160, 64],
        f"{_L}.mlp.up_proj.weight": [160, 64],
        f"{_L}.mlp.down_proj.weight": [64, 160],
        "model.norm.weight": [64],
        "lm_head.weight": [512, 64],
    }


_BIASES = {f"{_T}.{x}_proj.bias": [64 if x == "q" else 32] for x in "qkv"}
SHAPES = {
    "rwkv6qwen2": {**_shapes(32, 24, 40), **_BIASES},
    "rwkv6qwen2_own_keys": _shapes(64, 32, 64),
}
LLAMA_CPP = ("rwkv6qwen2", "rwkv6qwen2_own_keys")
