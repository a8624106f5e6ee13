"""Qwen2: LLaMA's graph with biases on queries, keys and values, and rope on halves.

Source: Yang et al. 2024, "Qwen2 Technical Report"; llama.cpp, ``llm_build_qwen2``.
"""

from __future__ import annotations

from typing import Any

from ..graph.builder import ROPE_FACTORS
from ..graph.tensors import GATED_FFN, OUTPUT, tensors
from ..hparams import Values
from ..mapping.rules import Config, Convert, base_keys, check_config, hidden_act
from . import llama

HPARAMS: Values = {"rope_neox": True}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.weight": ("n_embd",),
        "blk.{i}.attn_q.*?": ("n_embd", "n_embd_q"),
        "blk.{i}.attn_k.*?": ("n_embd", "n_embd_k"),
        "blk.{i}.attn_v.*?": ("n_embd", "n_embd_v"),
        "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.weight": ("n_embd",),
        **GATED_FFN,
        **ROPE_FACTORS,
        **OUTPUT,
    }
)


build_graph = llama.build_graph


def _keys(config: Config) -> dict[str, Any]:
    check_config(config, use_sliding_window=False)
    return base_keys(config) | hidden_act(config, "silu")


CONVERT = Convert(
    models=("Qwen2ForCausalLM", "Qwen2Model"),
    tensors={
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.{i}.input_layernorm.weight": "blk.{i}.attn_norm.weight",
        "model.layers.{i}.self_attn.q_proj.*": "blk.{i}.attn_q.*",
        "model.layers.{i}.self_attn.k_proj.*": "blk.{i}.attn_k.*",
        "model.layers.{i}.self_attn.v_proj.*": "blk.{i}.attn_v.*",
        "model.layers.{i}.self_attn.o_proj.weight": "blk.{i}.attn_output.weight",
        "model.layers.{i}.post_attention_layernorm.weight": "blk.{i}.ffn_norm.weight",
        "model.layers.{i}.mlp.gate_proj.weight": "blk.{i}.ffn_gate.weight",
        "model.layers.{i}.mlp.up_proj.weight": "blk.{i}.ffn_up.weight",
        "model.layers.{i}.mlp.down_proj.weight": "blk.{i}.ffn_down.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
    prefix="model.",
)
