"""Qwen3-MoE: Qwen3 with a mixture of experts.

Source: Yang et al. 2025, "Qwen3 Technical Report"; llama.cpp, ``llm_build_qwen3moe``.
"""

from __future__ import annotations

from ..graph.tensors import EXPERTS
from ..hparams import Key, Values
from ..mapping.rules import Config, Convert, Keys, check_config
from . import qwen2, qwen2moe, qwen3

HPARAMS: Values = {
    **qwen2.HPARAMS,
    "expert_weights_norm": Key("expert_weights_norm", True),
}

TENSORS = {**qwen3.TENSORS, **EXPERTS}

build_graph = qwen3.build_graph


def _keys(config: Config) -> Keys:
    check_config(config, mlp_only_layers=[], decoder_sparse_step=1)
    norm = {} if config.get("norm_topk_prob", True) else {"expert_weights_norm": False}
    return qwen2.keys(config, slides=lambda i: True) | norm


CONVERT = Convert(
    models=("Qwen3MoeForCausalLM",),
    tensors={
        **qwen3.CONVERT.tensors,
        **qwen2moe.ROUTED,
        **qwen2moe.STACKED,
    },
    defaults={"num_experts_per_tok": 8, "norm_topk_prob": False, "rms_norm_eps": 1e-6},
    keys=_keys,
    change=qwen2moe.split_experts,
)
