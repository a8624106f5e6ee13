"""EXAONE 4: OLMo 2's graph with norms of the queries and keys of each head.

32B has a window in three of four layers, and only these are rotated.
Source: LG AI Research 2025, "EXAONE 4.0"; llama.cpp, ``llm_build_exaone4``.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.tensors import without
from ..hparams import Values, nope_without_window, window_values
from ..mapping.rules import Config, Keys, base_keys, window_keys
from . import olmo2

HPARAMS: Values = {
    "rope_neox": True,
    **window_values(4, 0),
    "nope_layers": nope_without_window,
}

TENSORS = {
    name: ("head_dim",) if "_q_norm" in name or "_k_norm" in name else sizes
    for name, sizes in without(olmo2.TENSORS, ".bias").items()
}

build_graph = olmo2.build_graph


def _keys(config: Config) -> Keys:
    keys = {"vocab_size": config["vocab_size"]}
    return keys | base_keys(config, "silu") | window_keys(config, 4)


CONVERT = replace(
    olmo2.CONVERT,
    models=("Exaone4ForCausalLM", "Exaone4_5_ForConditionalGeneration"),
    keys=_keys,
    defaults={"sliding_window": 4096},
)
