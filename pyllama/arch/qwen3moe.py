"""Qwen3-MoE: Qwen3 with a mixture of experts.

Source: Yang et al. 2025, "Qwen3 Technical Report"; llama.cpp, ``llm_build_qwen3moe``.
"""

from __future__ import annotations

from ..graph.tensors import EXPERTS
from ..hparams import Values
from ..mapping.rules import Config, Convert, Keys, check_config
from . import qwen2moe, qwen3

HPARAMS: Values = {"rope_neox": True}

TENSORS = {**qwen3.TENSORS, **EXPERTS}

build_graph = qwen3.build_graph


def _keys(config: Config) -> Keys:
    check_config(config, norm_topk_prob=True, mlp_only_layers=[], decoder_sparse_step=1)
    return qwen3.CONVERT.keys(config)


CONVERT = Convert(
    models=("Qwen3MoeForCausalLM",),
    tensors={
        **qwen3.CONVERT.tensors,
        **qwen2moe.ROUTED,
    },
    keys=_keys,
)
