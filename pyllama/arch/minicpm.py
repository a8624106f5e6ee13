"""MiniCPM: LLaMA's graph with factors on embeddings, residuals and logits.

Source: Hu et al. 2024, "MiniCPM: Unveiling the Potential of Small Language Models with Scalable
Training Strategies"; llama.cpp, ``llm_build_minicpm``.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..hparams import Key, Values
from ..mapping.rules import Config, Keys, check_config, float32
from . import llama

HPARAMS: Values = {  # old files have no keys: MiniCPM-2B's factors
    "embedding_scale": Key("embedding_scale", 12.0),
    "residual_factor": Key("residual_scale", 0.0),
    "residual_scale": lambda got: got["residual_factor"] or 1.4 / math.sqrt(got["n_layer"]),
    "logit_divisor": Key("logit_scale", 0.0),
    "logit_scale": lambda got: 1 / (got["logit_divisor"] or got["n_embd"] / 256),
}
TENSORS = llama.TENSORS
build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    check_config(config, num_experts=0)
    return llama.keys(config) | {
        "embedding_scale": float32(config["scale_emb"]),
        "residual_scale": float32(config["scale_depth"] / config["num_hidden_layers"] ** 0.5),
        "logit_scale": float32(config["hidden_size"] / config["dim_model_base"]),
    }


CONVERT = replace(llama.CONVERT, models=("MiniCPMForCausalLM",), keys=_keys)
