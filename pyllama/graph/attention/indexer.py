"""Sparse attention (DSA): an indexer chooses the keys that a token attends to.

    chosen = choose_keys(b, x, q, i)               # None: all; or choose_blocks(b, x, i)
    out = b.attention(q, k, v, i, chosen=chosen)

The indexer has a few heads of queries and one of keys, which ``KVCache.indexer_keys`` keeps. The
score of a key is the sum over the heads of ``weight * relu(q k)``, with weights that are a
projection of the token; the ``n_sparse_keys`` best keys are chosen. A context with no more cells
attends to all keys, and computes no scores. A layer without an indexer of its own takes what the
last one chose; one with a window attends to all keys in it.
Source: DeepSeek-AI 2025, "DeepSeek-V3.2", section 2.1; llama.cpp, ``llama_model_deepseek32``.
"""

from __future__ import annotations

import math
from functools import partial

import pyggml as ops
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor

from ...errors import ModelError
from ...hparams import Got, Key, Values
from ..builder import GraphBuilder
from ..mamba import Sizes


def _by_layer(name: str, got: Got) -> tuple[int, ...]:
    """A size of the indexer in each layer, 0 where it has none: there are no tensors either."""
    return tuple(got[name] if own else 0 for own in got["indexer_layers"])


_SHARED: Values = {
    "n_indexer_head": Key("attention.indexer.head_count"),
    "n_indexer_key": Key("attention.indexer.key_length"),
    "n_index_head": partial(_by_layer, "n_indexer_head"),
    "n_index_key": partial(_by_layer, "n_indexer_key"),
    "indexer_neox": True,  # pairs of rotated columns are n_rot / 2 apart
    "indexer_rope_last": False,  # the last columns are rotated, not the first
}

HPARAMS: Values = {
    "n_sparse_keys": Key("attention.indexer.top_k"),
    "indexer_layers": Key("attention.indexer.types", 1, tuple),
    "indexer_eps": 1e-6,  # of the norm of its keys
    **_SHARED,
}

TENSORS = {
    "blk.{i}.indexer.attn_q_b.weight": ("n_lora_q", "n_index_head*n_index_key"),
    "blk.{i}.indexer.attn_k.weight": ("n_embd", "n_index_key"),
    "blk.{i}.indexer.k_norm.weight": ("n_index_key",),
    "blk.{i}.indexer.k_norm.bias": ("n_index_key",),
    "blk.{i}.indexer.proj.weight": ("n_embd", "n_index_head"),
}


BLOCK_HPARAMS: Values = {
    "n_blocks": Key("attention.indexer.top_k"),
    "n_block": Key("attention.indexer.block_size"),
    "n_local_blocks": Key("attention.indexer.local_blocks", 1),
    "n_sparse_keys": lambda got: got["n_blocks"] * got["n_block"],
    "indexer_layers": lambda got: tuple(
        int(i >= got["n_dense_lead"]) for i in range(got["n_layer"])
    ),
    **_SHARED,
}

BLOCK_TENSORS = {
    "blk.{i}.indexer.q_proj.weight": ("n_embd", "n_index_head*n_index_key"),
    "blk.{i}.indexer.k_proj.weight": ("n_embd", "n_index_key"),
    "blk.{i}.indexer.q_norm.weight": ("n_index_key",),
    "blk.{i}.indexer.k_norm.weight": ("n_index_key",),
}


def pooled_states(got: Got) -> tuple[Sizes, ...]:
    """The states of each layer whose indexer pools keys: the group of the last token.

    Raises:
        ModelError: the chosen keys are not whole groups.
    """
    n, n_pool = got["n_sparse_keys"], got["n_pool"]
    if n_pool < 1 or n < 1 or n % n_pool:
        raise ModelError(
            f"{got['arch']} model that chooses {n} keys in groups of {n_pool}, want whole groups; "
            "the metadata is damaged"
        )
    size = (3 * got["n_indexer_key"],)
    layers = got["indexer_layers"] or (0,) * got["n_layer"]
    return tuple({"index_pool": size} if own else {} for own in layers)


POOL_TENSORS = {
    **TENSORS,
    "blk.{i}.indexer_compressor_gate.weight": ("n_embd", "n_index_key"),
    "blk.{i}.indexer_compressor_ape.weight": ("n_index_key", "n_pool"),
}


def _has_indexer(b: GraphBuilder, i: int) -> bool:
    """Whether layer ``i`` chooses keys itself, in this context."""
    return bool(b.kv.caches) and i in b.kv.of_layer(i).indexer_keys


def choose_keys(b: GraphBuilder, x: Tensor, q: Tensor, i: int) -> Tensor | None:
    """The cells of the keys that each token attends to in layer ``i``; None for all.

    Args:
        x: what the layer's attention reads.
        q: the compressed queries.

    Shape:
        x [n_embd, T], q [n_lora_q, T] -> I32 [2, n_sparse_keys, T]
    """
    if b.hparams.window(i):
        return None
    if not _has_indexer(b, i):
        return b.chosen
    ctx, hp, kv, n_tokens = b.ctx, b.hparams, b.kv.of_layer(i), b.n_tokens
    n_head, n = hp.size("n_indexer_head"), hp.size("n_indexer_key")
    q = b.linear(q, f"blk.{i}.indexer.attn_q_b", f"indexer_q-{i}")
    q = ops.reshape_3d(ctx, q, n, n_head, n_tokens)
    q = b.rope_of_indexer(q, hp.rope(i)).set_name(f"indexer_q-{i} (roped)")
    k = b.linear(x, f"blk.{i}.indexer.attn_k", f"indexer_k-{i}")
    k = b.layer_norm(k, f"blk.{i}.indexer.k_norm", f"indexer_k_normed-{i}", hp.own["indexer_eps"])
    if f"blk.{i}.indexer_compressor_gate.weight" in b.weights:
        scores = b.linear(x, f"blk.{i}.indexer_compressor_gate", f"indexer_gate-{i}")
        bias = b.weight(f"blk.{i}.indexer_compressor_ape.weight")  # [n, n_pool]
        bias = bias if bias.type is GGMLType.F32 else ops.cast(ctx, bias, GGMLType.F32)
        k = ops.gated_pool(ctx, k, scores, bias, b.positions, b.state("index_pool", i))
    k = b.rope_of_indexer(ops.reshape_3d(ctx, k, n, 1, n_tokens), hp.rope(i))
    b.store_index(k.set_name(f"indexer_k-{i} (roped)"), i)
    weights = b.linear(x, f"blk.{i}.indexer.proj", f"indexer_weights-{i}")
    weights = ops.scale(ctx, weights, 1 / math.sqrt(n * n_head))
    rows = b.rows[b.kv.caches.index(kv)]
    b.chosen = ops.indexer_top_k(
        ctx, q, kv.indexer_keys[i], weights, kv.cells, rows, hp.n_sparse_keys,
        branches=kv.branches, block=hp.own.get("n_pool", 1),
    ).set_name(f"indexer_top_k-{i}")  # fmt: skip
    return b.chosen


def choose_groups(b: GraphBuilder, x: Tensor, i: int) -> Tensor | None:
    """As ``choose_keys`` of models whose keys of a group of tokens have a mean, and no weights.

    Shape:
        x [n_embd, T], what the layer's attention reads -> I32 [2, n_sparse_keys + n_pool - 1, T]

    Source: Qwen Team 2026, "Qwen3.8"; llama.cpp, ``llama_model_qwen4exp``.
    """
    if not _has_indexer(b, i):
        return None
    ctx, hp, kv, n_tokens = b.ctx, b.hparams, b.kv.of_layer(i), b.n_tokens
    n_head, n, n_pool = (hp.size(name) for name in ("n_indexer_head", "n_indexer_key", "n_pool"))
    q = b.linear(x, f"blk.{i}.indexer.q_proj", f"indexer_q-{i}")
    q = ops.reshape_3d(ctx, q, n, n_head, n_tokens)
    q = b.rms_norm(q, f"blk.{i}.indexer.q_norm", f"indexer_q_normed-{i}")
    q = b.rope_of_indexer(q, hp.rope(i)).set_name(f"indexer_q-{i} (roped)")
    k = b.linear(x, f"blk.{i}.indexer.k_proj", f"indexer_k-{i}")  # [n, T]
    zeros = ops.fill(ctx, k, 0.0)
    bias = ops.repeat_4d(ctx, ops.view_1d(ctx, zeros, n), n, n_pool, 1, 1)
    k = ops.gated_pool(ctx, k, zeros, bias, b.positions, b.state("index_pool", i))
    k = b.rms_norm(k, f"blk.{i}.indexer.k_norm", f"indexer_k_normed-{i}")
    first = ops.scale_bias(ctx, ops.cast(ctx, b.positions, GGMLType.F32), 1.0, 1.0 - n_pool)
    first = ops.cast(ctx, first, GGMLType.I32)  # of the group that ends with a token
    k = b.rope_of_indexer(ops.reshape_3d(ctx, k, n, 1, n_tokens), hp.rope(i), first)
    b.store_index(k.set_name(f"indexer_k-{i} (roped)"), i)
    weights = ops.fill(ctx, ops.view_2d(ctx, q, n_head, n_tokens, 4 * n_head), 1.0)
    return ops.indexer_top_k(
        ctx, q, kv.indexer_keys[i], weights, kv.cells,
        b.rows[b.kv.caches.index(kv)], hp.n_sparse_keys, branches=kv.branches, block=n_pool,
    ).set_name(f"indexer_top_k-{i}")  # fmt: skip


def choose_blocks(b: GraphBuilder, x: Tensor, i: int) -> Tensor | None:
    """The cells of the blocks of keys that the tokens attend to in layer ``i``; None for all.

    Each head of keys has a head of the indexer, which chooses for its queries.

    Shape:
        x [n_embd, T], what the layer's attention reads -> I32 [2, n_sparse_keys, T, n_head_kv]

    Source: MiniMax 2026, "MiniMax-M3"; llama.cpp, ``llama_model_minimax_m3``.
    """
    if not _has_indexer(b, i):
        return None
    ctx, hp, kv, n_tokens = b.ctx, b.hparams, b.kv.of_layer(i), b.n_tokens
    parts = []
    for part, heads in (("q", hp.size("n_indexer_head")), ("k", 1)):
        y = b.linear(x, f"blk.{i}.indexer.{part}_proj", f"indexer_{part}-{i}")
        y = ops.reshape_3d(ctx, y, hp.size("n_indexer_key"), heads, n_tokens)
        y = b.rms_norm(y, f"blk.{i}.indexer.{part}_norm", f"indexer_{part}_normed-{i}")
        parts.append(b.rope_of_indexer(y, hp.rope(i)).set_name(f"indexer_{part}-{i} (roped)"))
    q, k = parts
    b.store_index(k, i)
    rows = b.rows[b.kv.caches.index(kv)]
    sizes = hp.size("n_blocks"), hp.size("n_block"), hp.size("n_local_blocks")
    return ops.block_top_k(
        ctx, q, kv.indexer_keys[i], kv.cells, rows, *sizes, branches=kv.branches
    ).set_name(f"indexer_top_k-{i}")
