"""LFM2-MoE: LFM2 with a mixture of experts after the first layers.

Source: Liquid AI 2025, "LFM2 Technical Report"; llama.cpp, ``llama_model_lfm2moe``.
"""

from __future__ import annotations

from ..graph.tensors import EXPERTS
from ..hparams import GATINGS, Key, Values
from ..mapping.rules import Config, Convert, Keys
from . import lfm2

HPARAMS: Values = {
    **lfm2.HPARAMS,
    "n_ff_exp": Key("expert_feed_forward_length"),
    "expert_gating": Key("expert_gating_func"),
    "expert_weights_norm": Key("expert_weights_norm", True),
}

TENSORS = {**lfm2.TENSORS, **EXPERTS, "blk.{i}.exp_probs_b.bias?": ("n_expert",)}

build_graph = lfm2.build_graph


def _keys(config: Config) -> Keys:
    return lfm2.keys(config) | {
        "leading_dense_block_count": int(config.get("num_dense_layers", 2)),
        "expert_gating_func": GATINGS.index("sigmoid"),
        "expert_weights_norm": bool(config.get("norm_topk_prob", True)),
        "expert_weights_scale": float(config.get("routed_scaling_factor") or 1.0),
    }


_EXPERT = "model.layers.{i}.feed_forward.experts.{e}"
CONVERT = Convert(
    models=("Lfm2MoeForCausalLM",),
    tensors={
        **lfm2.NAMES,
        "model.layers.{i}.feed_forward.gate.weight": "blk.{i}.ffn_gate_inp.weight",
        "model.layers.{i}.feed_forward.expert_bias": "blk.{i}.exp_probs_b.bias",
        f"{_EXPERT}.w1.weight": "blk.{i}.ffn_gate_exps.weight",
        f"{_EXPERT}.w3.weight": "blk.{i}.ffn_up_exps.weight",
        f"{_EXPERT}.w2.weight": "blk.{i}.ffn_down_exps.weight",
    },
    keys=_keys,
    change=lfm2.change,
)
