"""Phi-1, 1.5 and 2: parallel attention and feed-forward with one layer norm, biases everywhere.

Rope rotates a part of each head.
Source: Li et al. 2023, "Textbooks Are All You Need II"; llama.cpp, ``llm_build_phi2``.
"""

from __future__ import annotations

from ..graph.builder import ROPE_FACTORS
from ..graph.tensors import tensors
from ..hparams import Key, Values
from ..mapping.rules import HF_QKV, Config, Convert, Keys, base_keys, check_config
from . import starcoder2

HPARAMS: Values = {"norm_eps": Key("attention.layer_norm_epsilon"), "rope_neox": True}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.*": ("n_embd",),
        "blk.{i}.attn_q.*": ("n_embd", "n_embd_q"),
        "blk.{i}.attn_k.*": ("n_embd", "n_embd_k"),
        "blk.{i}.attn_v.*": ("n_embd", "n_embd_v"),
        "blk.{i}.attn_output.*": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_up.*": ("n_embd", "n_ff"),
        "blk.{i}.ffn_down.*": ("n_ff", "n_embd"),
        **ROPE_FACTORS,
        "output_norm.*": ("n_embd",),
        "token_embd.weight": ("n_embd", "n_vocab"),
        "output.*": ("n_embd", "n_vocab"),
    }
)

build_graph = starcoder2.build_graph


def _keys(config: Config) -> Keys:
    check_config(config, qk_layernorm=False)
    return base_keys(config, "gelu")


CONVERT = Convert(
    models=("PhiForCausalLM",),
    tensors={
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.{i}.input_layernorm.*": "blk.{i}.attn_norm.*",
        **HF_QKV,
        "model.layers.{i}.self_attn.dense.*": "blk.{i}.attn_output.*",
        "model.layers.{i}.mlp.fc1.*": "blk.{i}.ffn_up.*",
        "model.layers.{i}.mlp.fc2.*": "blk.{i}.ffn_down.*",
        "model.final_layernorm.*": "output_norm.*",
        "lm_head.*": "output.*",
    },
    defaults={"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    keys=_keys,
)
