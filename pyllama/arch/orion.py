"""Orion: LLaMA with layer norms and rope on halves.

Source: Chen et al. 2024, "Orion-14B: Open-source Multilingual Large Language Models"; llama.cpp,
``llm_build_orion``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..graph.decoder import layer_norm_decoder
from ..hparams import Key, Values
from ..mapping.rules import Config, Keys, base_keys, float32
from . import llama, qwen2

HPARAMS: Values = {"norm_eps": Key("attention.layer_norm_epsilon"), "rope_neox": True}

TENSORS = {
    **qwen2.TENSORS,
    "blk.{i}.attn_norm.bias": ("n_embd",),
    "blk.{i}.ffn_norm.bias": ("n_embd",),
    "output_norm.bias": ("n_embd",),
}

build_graph = partial(layer_norm_decoder, act="silu")


def _keys(config: Config) -> Keys:
    keys = base_keys(config, "silu") | llama.PTH_LAYOUT
    eps = keys.pop("attention.layer_norm_rms_epsilon", float32(config["rms_norm_eps"]))
    keys["attention.layer_norm_epsilon"] = eps
    if config.get("max_sequence_length"):
        keys["context_length"] = int(config["max_sequence_length"])
    return keys


CONVERT = replace(
    llama.CONVERT,
    models=("OrionForCausalLM",),
    tensors={
        **qwen2.CONVERT.tensors,
        "model.layers.{i}.input_layernorm.*": "blk.{i}.attn_norm.*",
        "model.layers.{i}.post_attention_layernorm.*": "blk.{i}.ffn_norm.*",
        "model.norm.*": "output_norm.*",
    },
    keys=_keys,
    change=qwen2.CONVERT.change,
)
