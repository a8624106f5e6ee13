"""Mellum 2: Qwen3-MoE with sliding windows in some layers, whose rope has its own base.

Source: JetBrains 2026, "Mellum 2"; llama.cpp, ``llm_build_mellum``.
"""

from __future__ import annotations

from dataclasses import replace

from ..hparams import Key, Values, window_values
from ..mapping.rules import Config, Keys, check_config, window_keys
from . import qwen2, qwen3moe

HPARAMS: Values = {
    "rope_neox": True,
    **window_values(4, 0),
    "freq_base_swa": Key("rope.freq_base_swa", 0.0),
    "rope_freq_base_swa": lambda got: got["freq_base_swa"] or got["rope_freq_base"],
}
TENSORS = qwen3moe.TENSORS
build_graph = qwen3moe.build_graph


def _keys(config: Config) -> Keys:
    check_config(
        config, norm_topk_prob=True, attention_bias=False,
        mlp_layer_types=["sparse"] * int(config["num_hidden_layers"]),
    )  # fmt: skip
    keys = qwen2.keys({**config, "use_sliding_window": False})
    windows = "sliding_attention" in (config.get("layer_types") or ())
    return keys | window_keys(config, 4) if windows else keys


CONVERT = replace(
    qwen3moe.CONVERT,
    models=("MellumForCausalLM",),
    keys=_keys,
    defaults={
        "head_dim": 128,
        "num_experts_per_tok": 8,
        "rms_norm_eps": 1e-6,
        "sliding_window": 1024,
    },
    ignored=(*qwen3moe.CONVERT.ignored, "mtp.*"),
)
