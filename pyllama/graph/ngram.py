"""Embeddings of n-grams: each layer that has them adds rows of a table, chosen by hashes of tokens.

    streams = ops.add(ctx, streams, ngram_embedding(b, streams, i))    # [n_embd, n_hc, T]

For each n from 2 on there are some heads. A head's row number is a hash of a token and the n - 1
before it, modulo the head's number of rows. An n-gram does not go beyond an end-of-text token: all
before it count as that token. The rows of all heads give a value and a key for each residual
stream; the stream's agreement with the key gates the value, and a dilated convolution over time is
added. Hashes are computed in Python, between compiled parts of the graph.
Source: transformers, ``Qwen4ExpTextPLELayer``; llama.cpp, ``llama_model_qwen4exp::build_ple``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import pyggml as ops
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..hparams import Got, Key, Values
from .builder import GraphBuilder
from .mamba import Sizes
from .sparse.weights import ANY

Array = npt.NDArray[Any]
_SMALLEST = 1e-6  # of what a square root is taken


def _n_heads(got: Got) -> int:
    """The heads of all n-grams together. Raises: ModelError: constants do not fit."""
    n = int((max(got["n_gram"], 1) - 1) * got["n_gram_head"])
    sizes = [len(got[name]) for name in ("gram_multipliers", "gram_rows", "gram_offsets")]
    if got["gram_layers"] and sizes != [got["n_gram"], n, n]:
        raise ModelError(
            f"{got['arch']} model with {sizes[0]} multipliers of hashes, {sizes[1]} numbers of "
            f"rows and {sizes[2]} offsets, want {got['n_gram']}, {n} and {n}; the metadata is "
            "damaged"
        )
    ends = [a + b for a, b in zip(got["gram_rows"], got["gram_offsets"], strict=True)]
    if 0 in got["gram_rows"] or max(ends, default=0) >= 1 << 31 or got["gram_end"] >= 1 << 24:
        raise ModelError(
            f"{got['arch']} model with hashes to {min(got['gram_rows'])} of {max(ends)} rows, and "
            f"the end-of-text token {got['gram_end']}; the metadata is damaged"
        )
    return n if got["gram_layers"] else 0


def _in_layers(size: int, got: Got) -> tuple[int, ...]:
    return tuple(size if i in got["gram_layers"] else 0 for i in range(got["n_layer"]))


HPARAMS: Values = {
    "gram_layers": Key("ple.layers", type=list),
    "n_gram": Key("ple.ngram_size", 0),
    "n_gram_head": Key("ple.heads_per_ngram", 0),
    "n_gram_conv": Key("ple.conv_kernel", 0),
    "n_gram_embd": Key("embedding_length_per_layer_input", 0),
    "gram_end": Key("ple.eos_token_id", 0),
    "gram_multipliers": Key("ple.layer_multipliers", type=list),
    "gram_offsets": Key("ple.head_offsets", type=list),
    "gram_rows": Key("ple.head_vocab_sizes", type=list),
    "n_gram_heads": _n_heads,
    "has_grams": partial(_in_layers, 1),
    "n_gram_table": lambda got: got["n_gram_embd"] if got["gram_layers"] else 0,
}
TENSORS = {
    "blk.{i}.ple_key.weight": ("has_grams*n_gram_heads*n_gram_embd", "n_hc*n_embd"),
    "blk.{i}.ple_value.weight": ("has_grams*n_gram_heads*n_gram_embd", "n_embd"),
    **{
        f"blk.{{i}}.ple_norm_{x}.weight": ("has_grams*n_hc*n_embd",)
        for x in ("key", "query", "conv")
    },
    "blk.{i}.ple_conv1d.weight": ("has_grams*n_gram_conv", "n_hc*n_embd"),
    "per_layer_token_embd.weight": ("n_gram_table", ANY),
}


def states_of(got: Got) -> Sizes:
    """The sizes of the states of a layer with n-grams: of tokens before, and of the convolution."""
    past = (got["n_gram_conv"] - 1) * got["n_gram"]
    tokens = {f"token_{k}": (1,) for k in range(1, got["n_gram"])}
    return {**tokens, "gram_conv": (got["n_hc"] * got["n_embd"], past)}


def ngram_embedding(b: GraphBuilder, streams: Tensor, i: int) -> Tensor:
    """What layer ``i`` adds to its streams.

    Shape:
        streams [n_embd, n_hc, T] -> the same
    """
    ctx, own, (n_embd, n_hc, T) = b.ctx, b.hparams.own, streams.ne[:3]
    n_heads, n = own["n_gram_heads"], own["n_gram_embd"]
    rows = ops.reshape_2d(ctx, _rows(b, i), n_heads * T, 1)
    table = b.weight("per_layer_token_embd.weight")
    x = ops.reshape_2d(ctx, ops.get_rows(ctx, table, rows), n_heads * n, T)
    x.set_name(f"ple_embd-{i}")

    def normed(x: Tensor, part: str) -> Tensor:
        """The RMS norm of each stream."""
        weight = ops.reshape_2d(ctx, b.weight(f"blk.{i}.ple_norm_{part}.weight"), n_embd, n_hc)
        x = ops.rms_norm(ctx, ops.reshape_3d(ctx, x, n_embd, n_hc, T), b.hparams.norm_eps)
        return ops.mul(ctx, x, weight)

    key = normed(b.linear(x, f"blk.{i}.ple_key", f"ple_key-{i}"), "key")
    scores = ops.sum_rows(ctx, ops.mul(ctx, key, normed(streams, "query")))  # [1, n_hc, T]
    scores = ops.scale(ctx, scores, 1 / math.sqrt(n_embd))
    size = ops.sqrt(ctx, ops.clamp(ctx, ops.abs(ctx, scores), _SMALLEST, math.inf))
    gate = ops.sigmoid(ctx, ops.mul(ctx, ops.sgn(ctx, scores), size)).set_name(f"ple_gate-{i}")
    value = ops.reshape_3d(ctx, b.linear(x, f"blk.{i}.ple_value", f"ple_value-{i}"), n_embd, 1, T)
    value = ops.mul(ctx, ops.repeat_4d(ctx, value, n_embd, n_hc, T, 1), gate)
    past = ops.reshape_2d(ctx, normed(value, "conv"), n_embd * n_hc, T)
    past = ops.silu(ctx, ops.ssm_conv_slots(ctx, past, _taps(b, i), *b.state("gram_conv", i)))
    past = ops.reshape_3d(ctx, past, n_embd, n_hc, T).set_name(f"ple_conv-{i}")
    return ops.add(ctx, value, past)


def _rows(b: GraphBuilder, i: int) -> Tensor:
    """The row of each head: I32 [n_gram_heads, T].

    The states are tokens less the end-of-text token: of a sequence's beginning they are 0.
    """
    ctx, own = b.ctx, b.hparams.own
    x = ops.scale_bias(ctx, ops.cast(ctx, b.tokens, GGMLType.F32), 1.0, -float(own["gram_end"]))
    before = [ops.reshape_2d(ctx, x, 1, b.n_tokens)]
    for k in range(1, own["n_gram"]):
        before.append(ops.token_shift(ctx, before[-1], *b.state(f"token_{k}", i)))
    ne = own["n_gram_heads"], b.n_tokens
    rows = ops.map_custom(ctx, partial(hash_rows, own), *before, ne=ne, type=GGMLType.I32)
    return rows.set_name(f"ple_rows-{i}")


def hash_rows(own: Mapping[str, Any], dst: Array, *before: Array) -> None:
    """The row of each head, of each token and those before it.

    Args:
        own: the hyperparameters.
        before: the tokens, those before them and so on, each less ``gram_end``.

    Shape:
        NumPy order, before F32 [1, 1, T, 1] each -> dst I32 [1, 1, T, n_gram_heads]
    """
    end, n = own["gram_end"], own["n_gram_head"]
    multipliers = np.array(own["gram_multipliers"], np.uint64).astype(np.int64)
    sizes, offsets = (np.array(own[name], np.int64) for name in ("gram_rows", "gram_offsets"))
    mixed = (before[0].astype(np.int64) + end) * multipliers[0]  # [1, 1, T, 1]
    after_end = np.zeros(mixed.shape, bool)
    for k, x in enumerate(before[1:]):
        ids = np.where(after_end, 0, x.astype(np.int64))
        after_end |= ids == 0
        mixed = mixed ^ ((ids + end) * multipliers[k + 1])
        heads = slice(k * n, (k + 1) * n)
        dst[..., heads] = mixed % sizes[heads] + offsets[heads]


def _taps(b: GraphBuilder, i: int) -> Tensor:
    """The weights of the convolution, with ``n_gram - 1`` zeros between them.

    Shape:
        -> [(n_gram_conv - 1) * n_gram + 1, n_hc * n_embd]
    """
    ctx, taps, n = b.ctx, b.weight(f"blk.{i}.ple_conv1d.weight"), b.hparams.own["n_gram"]
    width, channels = taps.ne[:2]
    if taps.type is not GGMLType.F32:
        taps = ops.cast(ctx, taps, GGMLType.F32)
    if n > 1:
        taps = ops.reshape_3d(ctx, taps, 1, width, channels)
        taps = ops.pad(ctx, taps, n - 1, 0, 0, 0)  # [n, width, channels]
    used = ops.view_2d(ctx, taps, (width - 1) * n + 1, channels, 4 * n * width)
    return ops.cont(ctx, used)
