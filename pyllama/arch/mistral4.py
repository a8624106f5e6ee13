"""Mistral 4: DeepSeek-V2's graph, with an attention temperature.

Source: Mistral AI 2026, "Mistral Small 4"; llama.cpp, ``llama_model_mistral4``.
"""

from __future__ import annotations

from ..graph.tensors import without
from ..hparams import Values
from ..mapping.rules import Config, Convert, Keys, check_config, float32
from . import deepseek2

HPARAMS: Values = deepseek2.HPARAMS

TENSORS = {
    **without(deepseek2.TENSORS, "gate_exps", "up_exps"),
    "blk.{i}.ffn_gate_up_exps.weight": ("n_embd", "2*n_ff_exp", "n_expert"),
}

build_graph = deepseek2.build_graph


def _keys(config: Config) -> Keys:
    check_config(config, n_group=1)
    keys = deepseek2.latent_keys(config, "softmax")
    rope = config["rope_parameters"]
    if rope.get("llama_4_scaling_beta"):
        keys["attention.temperature_scale"] = float32(rope["llama_4_scaling_beta"])
        keys["attention.temperature_length"] = int(rope["original_max_position_embeddings"])
    return keys


CONVERT = Convert(
    models=("Mistral4ForCausalLM", "Mistral3ForConditionalGeneration"),
    tensors={
        **deepseek2.NAMES,
        "model.layers.{i}.mlp.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
        "model.layers.{i}.mlp.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
    },
    keys=_keys,
    change=deepseek2.change_latent,
    defaults=deepseek2.CONVERT.defaults,
)
