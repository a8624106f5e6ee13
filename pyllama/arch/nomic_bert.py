"""Nomic BERT: BERT with rope, one matrix for queries, keys and values, and SwiGLU.

Source: Nussbaum et al. 2024, "Nomic Embed: Training a Reproducible Long Context Text Embedder";
llama.cpp, ``llama_model_nomic_bert``.
"""

from __future__ import annotations

from functools import partial

from ..graph.encoder import post_norm_encoder
from ..graph.tensors import ENCODER, tensors
from ..hparams import Key, Values
from ..mapping.encoders import (
    HEADS,
    NOT_OF_ENCODERS,
    classifier_keys,
    with_prefixes,
    without_pooler,
)
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config, hidden_act

NAME = "nomic-bert"
HPARAMS: Values = {
    "encoder": True,
    "rope_neox": True,
    "norm_eps": Key("attention.layer_norm_epsilon"),
    "n_token_types": Key("tokenizer.ggml.token_type_count", 0, prefixed=False),
}

TENSORS = tensors({**ENCODER, "blk.{i}.ffn_gate.weight": ("n_embd", "n_ff")})

build_graph = partial(post_norm_encoder, act="silu")


_TRAINED = {8192: 2048, 2048: 512}  # positions of a checkpoint -> of its training


def nomic_keys(config: Config, act: str, theirs: str) -> Keys:
    """The keys of Nomic's encoders, by config.json of their own code or of transformers.

    Args:
        act: of the feed-forward part, and ``theirs``: its name in configurations of their own code.

    Source: llama.cpp, ``conversion/bert.py``, ``NomicBertModel``.
    """
    check_config(config, prenorm=False, use_rms_norm=False, parallel_block=False, causal=False)
    check_config(config, rotary_emb_fraction=1.0, rotary_emb_interleaved=False)
    check_config(config, activation_function=theirs)
    keys = {"attention.causal": False, **base_keys(config), **classifier_keys(config)}
    keys |= hidden_act({"hidden_act": config.get("hidden_act")}, act)
    trained = int(config.get("max_trained_positions", 2048))
    if config.get("max_position_embeddings") is None and trained == 2048:
        keys["context_length"] = _TRAINED.get(keys["context_length"], keys["context_length"])
    return keys


NAMES = with_prefixes(
    {
        "embeddings.word_embeddings.weight": "token_embd.weight",
        "embeddings.token_type_embeddings.weight": "token_types.weight",
        "emb_ln.*": "token_embd_norm.*",
        "encoder.layers.{i}.attn.Wqkv.*": "blk.{i}.attn_qkv.*",
        "encoder.layers.{i}.attn.out_proj.*": "blk.{i}.attn_output.*",
        "encoder.layers.{i}.norm1.*": "blk.{i}.attn_output_norm.*",
        "encoder.layers.{i}.mlp.fc11.*": "blk.{i}.ffn_up.*",
        "encoder.layers.{i}.mlp.fc12.*": "blk.{i}.ffn_gate.*",
        "encoder.layers.{i}.mlp.fc1.*": "blk.{i}.ffn_up.*",
        "encoder.layers.{i}.mlp.fc2.*": "blk.{i}.ffn_down.*",
        "encoder.layers.{i}.norm2.*": "blk.{i}.layer_output_norm.*",
        **HEADS,
    },
    "nomic_bert.",
    "bert.",
)

CONVERT = Convert(
    models=("NomicBertModel", "NomicBertForMaskedLM", "NomicBertForSequenceClassification"),
    accepts=lambda config: not config.get("moe_every_n_layers"),
    tensors=NAMES,
    keys=lambda config: nomic_keys(config, "silu", "swiglu"),
    change=without_pooler,
    defaults={"rotary_emb_base": 1000},
    ignored=NOT_OF_ENCODERS,
)
