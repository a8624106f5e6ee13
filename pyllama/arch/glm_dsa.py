"""GLM-5: DeepSeek-V3.2's graph; some layers take the keys that an earlier one chose.

Source: Zhipu AI 2026, "GLM-5"; llama.cpp, ``llama_model_glm_dsa``.
"""

from __future__ import annotations

from dataclasses import replace

from ..hparams import Key, Values
from ..mapping.rules import Config, Keys
from . import deepseek32

NAME = "glm-dsa"

HPARAMS: Values = {**deepseek32.HPARAMS, "expert_gating": Key("expert_gating_func", 2)}

TENSORS = deepseek32.TENSORS

MTP = deepseek32.MTP

build_graph = deepseek32.build_graph


def _keys(config: Config) -> Keys:
    keys = deepseek32.keys(config)
    if config.get("indexer_types"):
        keys["attention.indexer.types"] = [kind == "full" for kind in config["indexer_types"]]
    return keys


CONVERT = replace(
    deepseek32.CONVERT,
    models=("GlmMoeDsaForCausalLM",),
    keys=_keys,
    defaults={"rms_norm_eps": 1e-5},
)
