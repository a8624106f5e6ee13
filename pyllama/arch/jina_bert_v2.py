"""Jina Embeddings 2: BERT with ALiBi in place of positions, and GEGLU in one matrix.

Those of code have norms of queries and keys, and a second norm after attention.
Source: Guenther et al. 2023, "Jina Embeddings 2: 8192-Token General-Purpose Text Embeddings for
Long Documents"; llama.cpp, ``llama_model_jina_bert_v2``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.encoder import post_norm_encoder
from ..graph.sparse.weights import ANY
from ..graph.tensors import ENCODER, tensors
from ..hparams import Key, Values
from ..mapping.encoders import NOT_OF_ENCODERS, classifier_keys, with_prefixes, without_pooler
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, base_keys, check_config
from .bert import CONVERT as BERT

NAME = "jina-bert-v2"
HPARAMS: Values = {
    "encoder": True,
    "norm_eps": Key("attention.layer_norm_epsilon"),
    "n_rot": 0,
    "max_alibi_bias": 8.0,
    "n_token_types": Key("tokenizer.ggml.token_type_count", 0, prefixed=False),
}

TENSORS = tensors(
    {
        **ENCODER,
        "blk.{i}.attn_q_norm.weight?": ("n_embd_q",),
        "blk.{i}.attn_q_norm.bias?": ("n_embd_q",),
        "blk.{i}.attn_k_norm.weight?": ("n_embd_k",),
        "blk.{i}.attn_k_norm.bias?": ("n_embd_k",),
        "blk.{i}.attn_norm_2.weight?": ("n_embd",),
        "blk.{i}.attn_norm_2.bias?": ("n_embd",),
        "blk.{i}.ffn_gate.weight?": ("n_embd", "n_ff"),  # in older files; else the rows of up
        "blk.{i}.ffn_up.*?": ("n_embd", ANY),
    }
)


def _qkv(b: GraphBuilder, x: Tensor, i: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values; layer norms of the rows of queries and keys if the model has them.

    Shape:
        as of ``GraphBuilder.project_qkv``
    """
    q, k, v = b.project_qkv(x, i)
    if f"blk.{i}.attn_q_norm.weight" not in b.weights:
        return q, k, v
    normed = []
    for part, y in (("q", q), ("k", k)):
        n, heads, n_tokens = y.ne[:3]
        rows = ops.reshape_2d(b.ctx, y, n * heads, n_tokens)
        rows = b.layer_norm(rows, f"blk.{i}.attn_{part}_norm", f"{part.upper()}cur_normed-{i}")
        normed.append(ops.reshape_3d(b.ctx, rows, n, heads, n_tokens))
    return normed[0], normed[1], v


build_graph = partial(post_norm_encoder, act="gelu_erf", qkv=_qkv)


def _keys(config: Config) -> Keys:
    check_config(config, position_embedding_type="alibi", feed_forward_type="geglu")
    check_config(config, is_decoder=False, add_cross_attention=False)
    return {"attention.causal": False, **base_keys(config), **classifier_keys(config)}


def _change(name: str, x: Array, config: Config) -> Tensors:
    """The gate's rows come first, in ``up_gated_layer`` they are the last."""
    if "ffn_up_gate" in name:
        up, gate = np.split(x, 2)
        return {name.replace("ffn_up_gate", "ffn_up"): np.concatenate((gate, up))}
    return without_pooler(name, x, config)


_LAYER = "encoder.layer.{i}"
CONVERT = Convert(
    models=("JinaBertModel", "JinaBertForMaskedLM", "JinaBertForSequenceClassification"),
    tensors={
        **BERT.tensors,
        **with_prefixes(
            {
                f"{_LAYER}.attention.self.layer_norm_q.*": "blk.{i}.attn_q_norm.*",
                f"{_LAYER}.attention.self.layer_norm_k.*": "blk.{i}.attn_k_norm.*",
                f"{_LAYER}.layer_norm_1.*": "blk.{i}.attn_norm_2.*",
                f"{_LAYER}.layer_norm_2.*": "blk.{i}.layer_output_norm.*",
                f"{_LAYER}.mlp.gated_layers.weight": "blk.{i}.ffn_up.weight",
                f"{_LAYER}.mlp.up_gated_layer.weight": "blk.{i}.ffn_up_gate.weight",
                f"{_LAYER}.mlp.wo.*": "blk.{i}.ffn_down.*",
                f"{_LAYER}.mlp.down_layer.*": "blk.{i}.ffn_down.*",
                f"{_LAYER}.mlp.layernorm.*": "blk.{i}.layer_output_norm.*",
            },
            "bert.",
        ),
    },
    keys=_keys,
    change=_change,
    ignored=NOT_OF_ENCODERS,
)
