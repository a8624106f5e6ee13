"""EmbeddingGemma: Gemma 3 without causality, windows on both sides, dense layers after the pooling.

Source: Google 2025, "EmbeddingGemma: Powerful and Lightweight Text Representations"; llama.cpp,
``llama_model_gemma_embedding``.
"""

from __future__ import annotations

from functools import partial

from ..hparams import Values
from ..mapping.rules import Config, Convert, Keys, check_config
from . import gemma3

NAME = "gemma-embedding"
HPARAMS: Values = {**gemma3.HPARAMS, "encoder": True, "causal": False, "swa_symmetric": True}

TENSORS = {name: ne for name, ne in gemma3.TENSORS.items() if not name.startswith("output.")}

build_graph = partial(gemma3.decoder, act="gelu")


def _keys(config: Config) -> Keys:
    check_config(config, use_bidirectional_attention=True, final_logit_softcapping=0)
    return gemma3.keys(config)


CONVERT = Convert(
    models=("Gemma3TextModel",),
    tensors=gemma3.NAMES,
    defaults=gemma3.DEFAULTS,
    keys=_keys,
    change=gemma3.add_one,
    ignored=("lm_head.weight",),
    prefix="model.",
)
