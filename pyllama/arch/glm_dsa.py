"""GLM-5: DeepSeek-V3.2's graph; some layers take the keys that an earlier one chose.

Source: Zhipu AI 2026, "GLM-5"; llama.cpp, ``llama_model_glm_dsa``.
"""

from __future__ import annotations

from dataclasses import replace

from ..hparams import Got, Key, Values
from ..mapping.rules import Config, Keys
from . import deepseek32

NAME = "glm-dsa"

_NOT_IN_FILE = 2


def _indexer_layers(got: Got) -> tuple[int, ...]:
    """The layers with an indexer; files of GLM-5.2 without the key have llama.cpp's default.

    The first layer has one, that of multi-token prediction too.
    """
    types: tuple[int, ...] = got["indexer_types"]
    if _NOT_IN_FILE not in types:
        return (1, *types[1:])
    is_5_2 = got["n_ctx_train"] >= 1 << 20
    return tuple(int(i < 2 or (i - 2) % 4 == 0 or not is_5_2) for i in range(len(types)))


HPARAMS: Values = {
    **deepseek32.HPARAMS,
    "expert_gating": Key("expert_gating_func", 2),
    "indexer_types": Key("attention.indexer.types", _NOT_IN_FILE, tuple),
    "indexer_layers": _indexer_layers,
    "indexer_neox": False,
}

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
