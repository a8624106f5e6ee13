"""Gemma: LLaMA's graph with GEGLU, embeddings scaled by sqrt(n_embd), and tied output.

Norm weights in files have 1 added.
Source: Gemma Team 2024, "Gemma: Open Models Based on Gemini Research and Technology"; llama.cpp,
``llm_build_gemma``.
"""

from __future__ import annotations

from functools import partial

from ..graph.tensors import without
from ..hparams import Values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config
from . import gemma3, llama, qwen2

HPARAMS: Values = {"rope_neox": True, "embedding_scale": gemma3.HPARAMS["embedding_scale"]}

TENSORS = without(qwen2.TENSORS, ".bias")

build_graph = partial(llama.decoder, act="gelu")


def _keys(config: Config) -> Keys:
    check_config(config, use_bidirectional_attention=False, attention_bias=False)
    if config.get("hidden_act") == "gelu":  # of the first checkpoints, which mean tanh's
        config = {**config, "hidden_act": "gelu_pytorch_tanh"}
    return base_keys(config, "gelu")


CONVERT = Convert(
    models=("GemmaForCausalLM",),
    tensors=qwen2.CONVERT.tensors,
    defaults={
        "head_dim": 256,
        "num_key_value_heads": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
    keys=_keys,
    change=gemma3.add_one,
)
