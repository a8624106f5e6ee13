"""Mistral 3 and Ministral 3: LLaMA's graph with YaRN and an attention temperature.

Source: Mistral AI 2025, "Mistral Small 3.1" and "Ministral 3"; llama.cpp, ``llama_model_mistral3``.
"""

from __future__ import annotations

import math

from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph.attention.factors import attn_temperature
from ..graph.builder import GraphBuilder
from ..hparams import Got, Key, Values
from ..mapping.rules import Config, Convert, Keys
from . import llama


def _attn_factor(got: Got) -> float:
    """The factor on rotated queries and keys (YaRN, equation 22, for mscale = 1)."""
    log_factor = max(0.0, -math.log(got["rope_freq_scale"]))
    if not (got["yarn_log_mul"] and got["rope_scaling"] == "yarn"):
        return float(got["attn_factor"])
    return float(got["attn_factor"] / (1 + 0.1 * got["yarn_log_mul"] * log_factor))


HPARAMS: Values = {
    **llama.HPARAMS,
    "attn_factor": Key("rope.scaling.attn_factor", 1.0),
    "yarn_log_mul": Key("rope.scaling.yarn_log_multiplier", 0.0),
    "rope_attn_factor": _attn_factor,
    "temperature": Key("attention.temperature_scale", 0.0),
    "attn_scale": Key("attention.scale", 0.0),
}

TENSORS = llama.TENSORS


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    scale = b.hparams.own["temperature"]
    temperature = attn_temperature(b, scale, b.hparams.n_ctx_orig) if scale else None
    return llama.decoder(b, "silu", temperature=temperature)


def _keys(config: Config) -> Keys:
    keys = llama.CONVERT.keys(config)
    if config["model_type"] != "ministral3":
        return keys
    rope = config["rope_parameters"]
    if rope.get("mscale", 1) != 1:
        raise ModelError(f"config.json: mscale is {rope['mscale']}, must be 1")
    del keys["rope.scaling.attn_factor"]  # follows from the multiplier
    keys["rope.scaling.yarn_log_multiplier"] = float(rope["mscale_all_dim"])
    keys["attention.temperature_scale"] = float(rope["llama_4_scaling_beta"])
    return keys


CONVERT = Convert(
    models=("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
    tensors=llama.CONVERT.tensors,
    keys=_keys,
    change=llama.CONVERT.change,
    of_class={"Mistral3ForConditionalGeneration": {"rms_norm_eps": 1e-6}},
)
