"""Tiny checkpoints of ``rwkv6``: with layers' outputs halved after every second layer, or not."""

from __future__ import annotations

_RESCALED = {
    "architectures": ["Rwkv6ForCausalLM"],
    "model_type": "rwkv6",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "head_size": 32,
    "layer_norm_epsilon": 1e-5,
    "rescale_every": 2,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}
VARIANTS = {
    "rwkv6": _RESCALED,
    "rwkv6_as_is": {**_RESCALED, "rescale_every": 0, "intermediate_size": None, "head_size": 64},
}

_L = "rwkv.blocks.{i}"


def _shapes(n_ff: int, head_size: int) -> dict[str, list[int]]:
    return {
        "rwkv.embeddings.weight": [512, 64],
        **{
            f"{name}.{end}": [64]
            for name in ("rwkv.blocks.0.pre_ln", f"{_L}.ln1", f"{_L}.ln2", f"{_L}.attention.ln_x")
            for end in ("weight", "bias")
        },
        **{f"{_L}.attention.time_maa_{x}": [1, 1, 64] for x in "xwkvrg"},
        f"{_L}.attention.time_maa_w1": [64, 160],
        f"{_L}.attention.time_maa_w2": [5, 32, 64],
        f"{_L}.attention.time_decay": [1, 1, 64],
        f"{_L}.attention.time_decay_w1": [64, 64],
        f"{_L}.attention.time_decay_w2": [64, 64],
        f"{_L}.attention.time_faaaa": [64 // head_size, head_size],
        **{
            f"{_L}.attention.{x}.weight": [64, 64]
            for x in ("receptance", "key", "value", "gate", "output")
        },
        f"{_L}.feed_forward.time_maa_k": [1, 1, 64],
        f"{_L}.feed_forward.time_maa_r": [1, 1, 64],
        f"{_L}.feed_forward.key.weight": [n_ff, 64],
        f"{_L}.feed_forward.receptance.weight": [64, 64],
        f"{_L}.feed_forward.value.weight": [64, n_ff],
        "rwkv.ln_out.weight": [64],
        "rwkv.ln_out.bias": [64],
        "head.weight": [512, 64],
    }


SHAPES = {"rwkv6": _shapes(160, 32), "rwkv6_as_is": _shapes(224, 64)}
LLAMA_CPP = ("rwkv6", "rwkv6_as_is")
