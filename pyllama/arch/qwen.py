"""Qwen (1): Qwen2 with one matrix for queries, keys and values.

Source: Bai et al. 2023, "Qwen Technical Report"; llama.cpp, ``llm_build_qwen``.
"""

from __future__ import annotations

from ..graph.tensors import tensors
from ..hparams import Values
from ..mapping.rules import Config, Convert, Keys, base_keys, float32
from . import llama

HPARAMS: Values = {"rope_neox": True}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.weight": ("n_embd",),
        "blk.{i}.attn_qkv.*": ("n_embd", "n_embd_qkv"),
        "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.weight": ("n_embd",),
        "blk.{i}.ffn_gate.weight": ("n_embd", "n_ff/2"),  # n_ff is of gate and up together
        "blk.{i}.ffn_up.weight": ("n_embd", "n_ff/2"),
        "blk.{i}.ffn_down.weight": ("n_ff/2", "n_embd"),
        "output_norm.weight": ("n_embd",),
        "token_embd.weight": ("n_embd", "n_vocab"),
        "output.weight": ("n_embd", "n_vocab"),
    }
)
build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    keys = base_keys(config)
    eps = float32(config.get("layer_norm_epsilon", 1e-6))
    return keys | {"attention.layer_norm_rms_epsilon": eps}


CONVERT = Convert(
    models=("QWenLMHeadModel",),
    tensors={
        "transformer.wte.weight": "token_embd.weight",
        "transformer.h.{i}.ln_1.weight": "blk.{i}.attn_norm.weight",
        "transformer.h.{i}.attn.c_attn.*": "blk.{i}.attn_qkv.*",
        "transformer.h.{i}.attn.c_proj.weight": "blk.{i}.attn_output.weight",
        "transformer.h.{i}.ln_2.weight": "blk.{i}.ffn_norm.weight",
        "transformer.h.{i}.mlp.w2.weight": "blk.{i}.ffn_gate.weight",
        "transformer.h.{i}.mlp.w1.weight": "blk.{i}.ffn_up.weight",
        "transformer.h.{i}.mlp.c_proj.weight": "blk.{i}.ffn_down.weight",
        "transformer.ln_f.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
)
