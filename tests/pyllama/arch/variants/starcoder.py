"""Tiny checkpoints of ``starcoder``."""

from __future__ import annotations

_BASE = {
    "architectures": ["GPTBigCodeForCausalLM"],
    "model_type": "gpt_bigcode",
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "vocab_size": 512,
    "activation_function": "gelu_pytorch_tanh",
    "layer_norm_epsilon": 1e-5,
}
VARIANTS = {
    "starcoder": _BASE,
    "starcoder_multi_head": {**_BASE, "multi_query": False},
}

LLAMA_CPP = ("starcoder", "starcoder_multi_head")
DIFFERENT = {  # llama.cpp writes 1, and does not regroup the rows by head
    "starcoder_multi_head": ("attention.head_count_kv",),
}
