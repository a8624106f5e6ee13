"""NeoBERT: LLaMA's graph with SwiGLU in one matrix, whose tokens attend to all of their text.

Source: Le Breton et al. 2025, "NeoBERT: A Next-Generation BERT"; llama.cpp,
``llama_model_neo_bert``.
"""

from __future__ import annotations

from functools import partial

from ..graph.decoder import pre_norm_decoder
from ..hparams import POOLINGS, Values
from ..mapping.encoders import classifier_keys, with_prefixes
from ..mapping.rules import (
    Array,
    Config,
    Convert,
    Keys,
    Tensors,
    base_keys,
    check_config,
    float32,
    regroup_qkv,
)

NAME = "neo-bert"
HPARAMS: Values = {"encoder": True}

TENSORS = {
    "token_embd.weight": ("n_embd", "n_vocab"),
    "blk.{i}.attn_norm.weight": ("n_embd",),
    "blk.{i}.attn_qkv.weight": ("n_embd", "n_embd_qkv"),
    "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    "blk.{i}.ffn_up.weight": ("n_embd", "2*n_ff"),
    "blk.{i}.ffn_down.weight": ("n_ff", "n_embd"),
    "enc.output_norm.weight": ("n_embd",),
}


build_graph = partial(pre_norm_decoder, output_norm="enc.output_norm")


def _keys(config: Config) -> Keys:
    check_config(config, hidden_act="SwiGLU", rms_norm=True, rope=True, ngpt=False)
    hidden = int(2 * config["intermediate_size"] / 3)
    found = {
        "context_length": int(config.get("max_length") or 1024),
        "pooling_type": POOLINGS.index("cls"),
        **base_keys(config),
        "attention.causal": False,
        "attention.layer_norm_rms_epsilon": float32(config.get("norm_eps") or 1e-6),
        "feed_forward_length": (hidden + 7) // 8 * 8,
        "rope.freq_base": 10000.0,
        "rope.scaling.type": "none",
    }
    return found | classifier_keys(config)


def _change(name: str, x: Array, config: Config) -> Tensors:
    """In checkpoints a head's rows of queries, keys and values follow each other."""
    n_head = int(config["num_attention_heads"])
    return {name: regroup_qkv(x, n_head, n_head) if "attn_qkv" in name else x}


_LAYER = "transformer_encoder.{i}"
CONVERT = Convert(
    models=("NeoBERT", "NeoBERTLMHead", "NeoBERTForSequenceClassification"),
    tensors=with_prefixes(
        {
            "encoder.weight": "token_embd.weight",
            f"{_LAYER}.attention_norm.weight": "blk.{i}.attn_norm.weight",
            f"{_LAYER}.qkv.weight": "blk.{i}.attn_qkv.weight",
            f"{_LAYER}.wo.weight": "blk.{i}.attn_output.weight",
            f"{_LAYER}.ffn_norm.weight": "blk.{i}.ffn_norm.weight",
            f"{_LAYER}.ffn.w12.weight": "blk.{i}.ffn_up.weight",
            f"{_LAYER}.ffn.w3.weight": "blk.{i}.ffn_down.weight",
            "layer_norm.weight": "enc.output_norm.weight",
            "dense.*": "cls.*",
            "classifier.*": "cls.output.*",
        },
        "model.",
    ),
    keys=_keys,
    change=_change,
    ignored=("decoder.*", "*freqs_cis"),
)
