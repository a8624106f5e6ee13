"""Cohere 2 (Command R7B, Command A): Command R with a window in three of four layers.

Only layers with a window are rotated.
Source: Cohere 2025, "Command A"; llama.cpp, ``llm_build_cohere2_iswa``.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.tensors import without
from ..hparams import Values, nope_without_window, window_values
from ..mapping.rules import Config, Keys, window_keys
from . import command_r

HPARAMS: Values = {
    **command_r.HPARAMS,
    **window_values(4),
    "nope_layers": nope_without_window,
}

TENSORS = without(command_r.TENSORS, "_norm.weight?")
_NAMED = {name.rstrip("?") for name in TENSORS}

build_graph = command_r.build_graph


def _keys(config: Config) -> Keys:
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    sizes = ("rope.dimension_count", "attention.key_length", "attention.value_length")
    keys = {"vocab_size": config["vocab_size"], **dict.fromkeys(sizes, head_dim)}
    return keys | command_r.keys(config) | window_keys(config, 4)


CONVERT = replace(
    command_r.CONVERT,
    models=("Cohere2ForCausalLM",),
    tensors={name: x for name, x in command_r.CONVERT.tensors.items() if x in _NAMED or ".*" in x},
    defaults={**command_r.CONVERT.defaults, "rope_theta": 10000.0, "sliding_window": 4096},
    keys=_keys,
)
