"""Layers that attend to the keys and values of an earlier layer (Gemma 3n and 4).

q, k, v = normalized_qkv(b, cur, i)            # k and v are None where a layer has none

The last layers of a model have only queries: they read the cache of the last layer with keys and
values that has the same kind of attention (``HParams.cache_layer``). Files may have matrices of
keys and values for them too, which are not used.
Source: Brandon et al. 2024, "Reducing Transformer Key-Value Cache Size with Cross-Layer Attention";
llama.cpp, ``n_layer_kv_from_start``.
"""

from __future__ import annotations

from collections.abc import Callable

import pyggml as ops
from pyggml.tensor import Tensor

from ...hparams import Got, Key, Values
from ..builder import GraphBuilder


def _in_layers(size: Callable[[Got, int], int], own: bool) -> Callable[[Got], tuple[int, ...]]:
    """A size in layers with keys and values of their own, or in the others; 0 elsewhere."""

    def sizes(got: Got) -> tuple[int, ...]:
        n, n_kv = got["n_layer"], got["n_layer_kv"]
        return tuple(size(got, i) if (not n_kv or i < n_kv) == own else 0 for i in range(n))

    return sizes


def _columns(got: Got, i: int) -> int:
    columns: int = got["head_dim_arr"][i] * got["n_head_kv_arr"][i]
    return columns


def _head(got: Got, i: int) -> int:
    columns: int = got["head_dim_arr"][i]
    return columns


SHARED_KV: Values = {
    "n_shared_kv": Key("attention.shared_kv_layers", 0),
    "n_layer_kv": lambda got: got["n_layer"] - got["n_shared_kv"] if got["n_shared_kv"] else 0,
    "n_embd_k_own": _in_layers(_columns, own=True),
    "n_embd_k_unused": _in_layers(_columns, own=False),
    "head_dim_own": _in_layers(_head, own=True),
    "head_dim_unused": _in_layers(_head, own=False),
}
KEYS_AND_VALUES = {
    "blk.{i}.attn_k.weight": ("n_embd", "n_embd_k_own"),
    "blk.{i}.attn_k.weight?": ("n_embd", "n_embd_k_unused"),
    "blk.{i}.attn_k_norm.weight": ("head_dim_own",),
    "blk.{i}.attn_k_norm.weight?": ("head_dim_unused",),
    "blk.{i}.attn_v.weight": ("n_embd", "n_embd_k_own"),
    "blk.{i}.attn_v.weight?": ("n_embd", "n_embd_k_unused"),
}


def normalized_qkv(
    b: GraphBuilder, x: Tensor, i: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Queries, keys and values of layer ``i``, all normalized by head, values without a weight.

    Values are the keys before their norm where the layer has no ``attn_v``.

    Shape:
        x [n_embd, T] -> q [head_dim, n_head, T], k and v [head_dim, n_head_kv, T] or None
    """
    hp = b.hparams.of_layer(i)

    def heads(part: str, n: int) -> Tensor:
        y = b.linear(x, f"blk.{i}.attn_{part}", f"{part.upper()}cur-{i}")
        return ops.reshape_3d(b.ctx, y, hp.head_dim, n, b.n_tokens)

    q = b.rms_norm(heads("q", hp.n_head), f"blk.{i}.attn_q_norm", f"Qcur_normed-{i}")
    if b.hparams.cache_layer(i) != i:
        return q, None, None
    k = heads("k", hp.n_head_kv)
    v = heads("v", hp.n_head_kv) if f"blk.{i}.attn_v.weight" in b.weights else k
    k = b.rms_norm(k, f"blk.{i}.attn_k_norm", f"Kcur_normed-{i}")
    return q, k, ops.rms_norm(b.ctx, v, hp.norm_eps).set_name(f"Vcur_normed-{i}")
