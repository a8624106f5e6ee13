"""HunyuanOCR (text): Hunyuan's graph, with multi-section rope whose base the file's alpha raises.

The sections of rope differ for images only: a token of text has one position in all of them.
Source: Tencent 2025, "HunyuanOCR Technical Report"; llama.cpp, ``llama_model_hunyuan_vl``.
"""

from __future__ import annotations

from dataclasses import replace

from ..hparams import Got, Key, Values
from ..mapping.rules import Config, Keys, base_keys, hidden_act
from . import hunyuan_dense


def _freq_base(got: Got) -> float:
    n, base, alpha = got["head_dim_arr"][0], got["rope_freq_base"], got["rope_alpha"]
    return float(base * alpha ** (n / (n - 2))) if alpha > 0 else float(base)


HPARAMS: Values = {
    **hunyuan_dense.HPARAMS,
    "rope_alpha": Key("rope.scaling.alpha", 0.0),
    "rope_freq_base": _freq_base,
}

TENSORS = hunyuan_dense.TENSORS

build_graph = hunyuan_dense.build_graph


def _keys(config: Config) -> Keys:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    plain = {"rope_theta": rope.get("rope_theta") or config.get("rope_theta") or 10000.0}
    if config.get("num_experts") == 1:
        config = {**config, "num_experts": None}
    keys = base_keys({**config, "rope_scaling": None, "rope_parameters": plain})
    sections = rope.get("xdrope_section") or rope.get("mrope_section")
    if sections and rope.get("alpha"):
        keys |= {
            "rope.scaling.alpha": float(rope["alpha"]),
            "rope.scaling.type": "none",
            "rope.scaling.factor": float(rope.get("factor") or 1.0),
            "rope.scaling.original_context_length": int(config["max_position_embeddings"]),
            "rope.dimension_sections": [int(n) for n in sections],
        }
    return keys | hidden_act(config, "silu")


CONVERT = replace(
    hunyuan_dense.CONVERT,
    models=("HunYuanVLForConditionalGeneration",),
    tensors=hunyuan_dense.CONVERT.tensors,
    other_media=("vit.*", "model.vit.*"),
    keys=_keys,
)
