"""Qwen2: LLaMA's graph with biases on queries, keys and values, and rope on halves.

Source: Yang et al. 2024, "Qwen2 Technical Report"; llama.cpp, ``llm_build_qwen2``.
"""

from __future__ import annotations

from ..graph.builder import ROPE_FACTORS
from ..graph.tensors import GATED_FFN, OUTPUT, QKV, tensors
from ..hparams import Values
from ..mapping.rules import HF_MLP, HF_QKV, Config, Convert, Keys, base_keys, check_config
from . import llama

HPARAMS: Values = {"rope_neox": True}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.weight": ("n_embd",),
        **QKV,
        "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.weight": ("n_embd",),
        **GATED_FFN,
        **ROPE_FACTORS,
        **OUTPUT,
    }
)


build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    check_config(config, use_sliding_window=False)
    return base_keys(config, "silu")


CONVERT = Convert(
    models=("Qwen2ForCausalLM", "Qwen2Model"),
    tensors={
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.{i}.input_layernorm.weight": "blk.{i}.attn_norm.weight",
        **HF_QKV,
        "model.layers.{i}.self_attn.o_proj.weight": "blk.{i}.attn_output.weight",
        "model.layers.{i}.post_attention_layernorm.weight": "blk.{i}.ffn_norm.weight",
        **HF_MLP,
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
    prefix="model.",
)
