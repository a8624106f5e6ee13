"""Persimmon: layer norm, also of the heads of queries and keys, squared ReLU, rope of half a head.

Source: Elsen et al. 2023, "Releasing Persimmon-8B"; llama.cpp until 2024,
``llm_build_persimmon``, whose names these are.
"""

from __future__ import annotations

from functools import partial

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.decoder import layer_norm_decoder
from ..graph.tensors import tensors, without
from ..hparams import Key, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config, rotated_fraction
from . import gpt2

HPARAMS: Values = {
    "norm_eps": Key("attention.layer_norm_epsilon"),
    "rope_neox": True,
    "n_rot_arr": lambda got: tuple(n // 2 for n in got["head_dim_arr"]),  # files have the head's
}

TENSORS = tensors(
    {
        **without(gpt2.TENSORS, "position_embd"),
        "blk.{i}.attn_q_norm.*": ("head_dim",),
        "blk.{i}.attn_k_norm.*": ("head_dim",),
    }
)


def _qkv(b: GraphBuilder, x: Tensor, i: int) -> tuple[Tensor, Tensor, Tensor]:
    """Normed queries and keys, and values, of a matrix whose rows are by head.

    Shape:
        as of ``GraphBuilder.project_qkv``
    """
    hp, ctx = b.hparams, b.ctx
    whole = b.linear(x, f"blk.{i}.attn_qkv", f"wqkv-{i}")  # [3 * n_embd, T]
    row = hp.head_dim * whole.nb[0]
    ne, nb = (hp.head_dim, hp.n_head, b.n_tokens), (3 * row, whole.nb[1])
    q, k, v = (ops.cont(ctx, ops.view_3d(ctx, whole, ne, nb, part * row)) for part in range(3))
    q = b.layer_norm(q, f"blk.{i}.attn_q_norm", f"Qcur_normed-{i}")
    k = b.layer_norm(k, f"blk.{i}.attn_k_norm", f"Kcur_normed-{i}")
    return q, k, v


build_graph = partial(layer_norm_decoder, act="relu_sqr", qkv=_qkv)


def _keys(config: Config) -> Keys:
    check_config(config, qk_layernorm=True)
    check_config({"partial_rotary_factor": rotated_fraction(config)}, partial_rotary_factor=0.5)
    return base_keys(config, "relu_sqr")


CONVERT = Convert(
    models=("PersimmonForCausalLM",),
    tensors={
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.{i}.input_layernorm.*": "blk.{i}.attn_norm.*",
        "model.layers.{i}.self_attn.query_key_value.*": "blk.{i}.attn_qkv.*",
        "model.layers.{i}.self_attn.q_layernorm.*": "blk.{i}.attn_q_norm.*",
        "model.layers.{i}.self_attn.k_layernorm.*": "blk.{i}.attn_k_norm.*",
        "model.layers.{i}.self_attn.dense.*": "blk.{i}.attn_output.*",
        "model.layers.{i}.post_attention_layernorm.*": "blk.{i}.ffn_norm.*",
        "model.layers.{i}.mlp.dense_h_to_4h.*": "blk.{i}.ffn_up.*",
        "model.layers.{i}.mlp.dense_4h_to_h.*": "blk.{i}.ffn_down.*",
        "model.final_layernorm.*": "output_norm.*",
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
    defaults={"hidden_act": "relu2", "layer_norm_eps": 1e-5},
)
