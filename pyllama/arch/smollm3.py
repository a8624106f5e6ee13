"""SmolLM3: LLaMA's graph with rope in three of four layers.

Source: Bakouch et al. 2025, "SmolLM3: smol, multilingual, long-context reasoner"; llama.cpp,
``llm_build_smollm3``.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.tensors import EXPERTS, without
from ..hparams import Values
from ..mapping.rules import Config, Keys, check_config
from . import llama

_PERIOD = 4  # the last of so many layers is not rotated

HPARAMS: Values = {
    "nope_layers": lambda got: tuple((i + 1) % _PERIOD == 0 for i in range(got["n_layer"]))
}

TENSORS = without(llama.TENSORS, *EXPERTS)

build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    rotated = [int((i + 1) % _PERIOD != 0) for i in range(int(config["num_hidden_layers"]))]
    check_config(config, use_sliding_window=False, no_rope_layers=rotated)
    if config.get("sliding_window"):
        check_config(config, layer_types=["full_attention"] * len(rotated))
    if not config.get("no_rope_layers"):
        check_config(config, no_rope_layer_interval=_PERIOD)
    return llama.keys(config)


CONVERT = replace(
    llama.CONVERT,
    models=("SmolLM3ForCausalLM", "SmolLM3Model"),
    defaults={"num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 2000000.0},
    keys=_keys,
)
