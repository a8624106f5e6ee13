"""MiniCPM3: latent attention with expanded keys and values; scaled embeddings and branches.

Source: Hu et al. 2024, "MiniCPM: Unveiling the Potential of Small Language Models with Scalable
Training Strategies"; llama.cpp, ``llm_build_minicpm3``, which takes MiniCPM3-4B's scales always.
"""

from __future__ import annotations

import math

from ..graph.attention import mla
from ..graph.builder import ROPE_FACTORS
from ..graph.tensors import DEEPSEEK_EXPERTS, without
from ..hparams import Got, Key, Values
from ..mapping.rope import rope_factors
from ..mapping.rules import Config, Convert, Keys, base_keys, float32, hidden_act
from . import deepseek2, minicpm


def _value_columns(got: Got) -> tuple[int, ...]:
    """``head_dim_v`` of each layer, which llama.cpp's converter does not write."""
    n: int = got["value_length"] or got["n_embd"] // got["n_head_arr"][0]
    return (n,) * int(got["n_layer"])


HPARAMS: Values = {  # without the keys of scales MiniCPM3-4B's
    "value_length": Key("attention.value_length", 0),
    "head_dim_v_arr": _value_columns,
    **mla.HPARAMS,
    "rope_neox": True,
    **minicpm.HPARAMS,
}

TENSORS = {
    **without(deepseek2.TENSORS, *DEEPSEEK_EXPERTS),
    **ROPE_FACTORS,
}

build_graph = deepseek2.build_graph


def expanded_keys(config: Config) -> Keys:
    """The keys of latent attention with expanded keys and values."""
    n_rot = int(config["qk_rope_head_dim"])
    keys = base_keys(config) | {
        "attention.kv_lora_rank": int(config["kv_lora_rank"]),
        "attention.key_length": int(config["qk_nope_head_dim"]) + n_rot,
        "attention.value_length": int(config["v_head_dim"]),
        "rope.dimension_count": n_rot,
    }
    if config.get("q_lora_rank") is not None:
        keys["attention.q_lora_rank"] = int(config["q_lora_rank"])
    return keys


def _keys(config: Config) -> Keys:
    n_embd, n_layer = int(config["hidden_size"]), int(config["num_hidden_layers"])
    value = config.get("v_head_dim") or n_embd // int(config["num_attention_heads"])
    keys = expanded_keys({**config, "v_head_dim": value}) | hidden_act(config, "silu")
    depth = config["scale_depth"]
    return keys | {
        "embedding_scale": float32(config["scale_emb"]),
        "residual_scale": float32(1 if depth is None else depth / math.sqrt(n_layer)),
        "logit_scale": float32(n_embd / (config["dim_model_base"] or n_embd)),
    }


CONVERT = Convert(
    models=("MiniCPM3ForCausalLM",),
    tensors=deepseek2.DENSE,
    keys=_keys,
    extra=lambda config: rope_factors({**config, "head_dim": config["qk_rope_head_dim"]}),
    defaults={"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "rms_norm_eps": 1e-5},
)
