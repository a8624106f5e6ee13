"""Hunyuan (dense): LLaMA's graph with norms of the heads of queries and keys after rope.

Source: Tencent 2025, "Hunyuan-7B"; llama.cpp, ``llm_build_hunyuan_dense``.
"""

from __future__ import annotations

from ..hparams import Values
from ..mapping.rules import Config, Convert, Keys, base_keys, head_columns
from . import maincoder, qwen2, qwen3

NAME = "hunyuan-dense"

HPARAMS: Values = {"rope_neox": True}

TENSORS = qwen3.TENSORS


build_graph = maincoder.build_graph

_N_CTX = 256 * 1024  # of checkpoints with an alpha, whose config.json says less


def keys(config: Config) -> Keys:
    """The keys of Hunyuan's models; NTK scaling with ``alpha`` changes the base of rope."""
    if config.get("num_experts") == 1:
        config = {**config, "num_experts": None}
    found = base_keys(config, "silu")
    params = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if (params.get("rope_type") or params.get("type")) == "dynamic" and params.get("alpha"):
        dim = head_columns(config)
        theta = float(params.get("rope_theta") or config.get("rope_theta") or 10000.0)
        found |= {
            "rope.freq_base": theta * float(params["alpha"]) ** (dim / (dim - 2)),
            "rope.scaling.type": "none",
            "rope.scaling.factor": 1.0,
            "rope.scaling.original_context_length": _N_CTX,
            "context_length": _N_CTX,
        }
    return found


CONVERT = Convert(
    models=("HunYuanDenseV1ForCausalLM",),
    tensors={
        **qwen2.CONVERT.tensors,
        "model.layers.{i}.self_attn.o_proj.*": "blk.{i}.attn_output.*",
        "model.layers.{i}.self_attn.query_layernorm.weight": "blk.{i}.attn_q_norm.weight",
        "model.layers.{i}.self_attn.key_layernorm.weight": "blk.{i}.attn_k_norm.weight",
    },
    keys=keys,
)
