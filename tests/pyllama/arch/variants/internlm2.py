"""Tiny checkpoints of ``internlm2``."""

from __future__ import annotations

from . import llama

VARIANTS = {
    "internlm2": {
        **llama.VARIANTS["llama"],
        "architectures": ["InternLM2ForCausalLM"],
        "model_type": "internlm2",
        "bias": False,
    }
}
SHAPES = {
    "internlm2": {
        "model.tok_embeddings.weight": [512, 64],
        "model.layers.{i}.attention_norm.weight": [64],
        "model.layers.{i}.attention.wqkv.weight": [128, 64],
        "model.layers.{i}.attention.wo.weight": [64, 64],
        "model.layers.{i}.ffn_norm.weight": [64],
        "model.layers.{i}.feed_forward.w1.weight": [160, 64],
        "model.layers.{i}.feed_forward.w3.weight": [160, 64],
        "model.layers.{i}.feed_forward.w2.weight": [64, 160],
        "model.norm.weight": [64],
        "output.weight": [512, 64],
    }
}
LLAMA_CPP = ("internlm2",)
