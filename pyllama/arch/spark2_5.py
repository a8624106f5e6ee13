"""Spark 2.5: a gate on each head's output, windows with a rope of their own, GELU.

Source: iFlytek 2026, "Spark-X2.5"; llama.cpp, ``llama_model_spark2_5``.
"""

from __future__ import annotations

from functools import partial

from ..graph.tensors import GATED_FFN, OUTPUT
from ..hparams import Values, window_values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config, window_keys
from . import laguna, llama, qwen2

HPARAMS: Values = {
    "rope_neox": True,
    **window_values(4, base=0.0),
}

TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd",),
    "blk.{i}.attn_qkv.weight": ("n_embd", "n_embd_qkv"),
    "blk.{i}.attn_gate.weight": ("n_embd", "n_head"),
    "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    **GATED_FFN,
    **OUTPUT,
}

build_graph = partial(llama.decoder, act="gelu", gate="sigmoid")


def _keys(config: Config) -> Keys:
    check_config(
        config, gate_attn_act_mode="sigmoid", headwise_attn_output_gate=True, hidden_act="gelu"
    )
    keys = base_keys(config) | window_keys(config, 4)
    return keys | laguna.rotated_keys(config)


CONVERT = Convert(
    models=("Spark2_5ForCausalLM",),
    tensors={
        **qwen2.CONVERT.tensors,
        "model.layers.{i}.self_attn.q_k_v_proj.weight": "blk.{i}.attn_qkv.weight",
        "model.layers.{i}.self_attn.g_proj.weight": "blk.{i}.attn_gate.weight",
    },
    keys=_keys,
)
