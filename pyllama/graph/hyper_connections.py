"""Hyper-connections: parallel residual streams that each layer reads and writes.

    x, gate = read_streams(b, streams, f"blk.{i}.hc_attn", i)  # [n_embd, T], [1, n_hc, T]
    streams = write_streams(b, part(x), streams, gate)         # [n_embd, n_hc, T]

All factors follow from the streams: a part's input is a weighted sum of them, and its output is
added to each with a factor. In gated ones (``read_gated``) each element has a gate before the sum.
In manifold-constrained ones (``read_mixed``), the streams that it is added to are mixed by a
matrix, whose rows and columns sum to 1.
Source: Zhu et al. 2024, "Hyper-Connections"; Xie et al. 2026, "mHC: Manifold-Constrained
Hyper-Connections"; transformers, ``HYV4HyperConnection`` and ``DeepseekV4HyperConnection``;
llama.cpp, ``llama_model_hy_v4``, ``llama_model_qwen4exp`` and ``llama_model_deepseek4``.
"""

from __future__ import annotations

from functools import partial, reduce

import pyggml as ops
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..hparams import Got, Key, Values
from .builder import GraphBuilder

_MAX_ITERATIONS = 1000

HPARAMS: Values = {
    "n_hc": Key("hyper_connection.count"),
    "hc_eps": Key("hyper_connection.epsilon", type=float),
    "hc_magnitude": Key("hyper_connection.magnitude", type=float),
}


def _n_mixes(got: Got) -> int:
    """Factors of a part, and elements of the matrix. Raises: ModelError: illegal values."""
    n, n_iterations, eps = got["n_hc"], got["n_sinkhorn"], got["hc_eps"]
    if not (n > 0 and 0 < n_iterations <= _MAX_ITERATIONS and eps >= 0):
        raise ModelError(
            f"{got['arch']} model with {n} streams, {n_iterations} iterations of Sinkhorn's "
            f"algorithm and epsilon {eps}, want 1 or more, 1 to {_MAX_ITERATIONS}, 0 or more"
        )
    mixes: int = (2 + n) * n
    return mixes


MIXING_HPARAMS: Values = {
    **{name: HPARAMS[name] for name in ("n_hc", "hc_eps")},
    "n_sinkhorn": Key("hyper_connection.sinkhorn_iterations"),
    "n_mixes": _n_mixes,
}


def _tensors(n_factors: str, n_scales: str) -> dict[str, tuple[str, ...]]:
    return {
        **{
            f"blk.{{i}}.hc_{part}_{name}.weight": sizes
            for part in ("attn", "ffn")
            for name, sizes in (("fn", ("n_hc*n_embd", n_factors)), ("base", (n_factors,)),
                                ("scale", (n_scales,)))
        },
        "output_hc_fn.weight": ("n_hc*n_embd", "n_hc"),
        "output_hc_base.weight": ("n_hc",),
        "output_hc_scale.weight": ("1",),
    }  # fmt: skip


TENSORS = _tensors("2*n_hc", "2")
MIXING_TENSORS = _tensors("n_mixes", "3")


GATED_HPARAMS: Values = {
    "n_hc": HPARAMS["n_hc"],
    "n_hc_rank": Key("hyper_connection.low_rank"),
}
GATED_TENSORS = {
    f"{prefix}_{name}.weight": sizes
    for prefix in ("blk.{i}.hc_attn", "blk.{i}.hc_ffn", "output_hc")
    for name, sizes in (("norm", ("n_hc*n_embd",)), ("down", ("n_hc*n_embd", "n_hc_rank")),
                        ("up", ("n_hc_rank", "n_hc*n_embd")), ("inject", ("n_hc*n_embd", "n_hc")))
    if (prefix, name) != ("output_hc", "inject")
}  # fmt: skip


def start_streams(b: GraphBuilder, x: Tensor) -> Tensor:
    """The streams before the first layer, all alike: [n_embd, T] -> [n_embd, n_hc, T]."""
    n_embd, n_tokens = x.ne[:2]
    x = ops.reshape_3d(b.ctx, x, n_embd, 1, n_tokens)
    return ops.repeat_4d(b.ctx, x, n_embd, b.hparams.size("n_hc"), n_tokens, 1)


def read_streams(b: GraphBuilder, streams: Tensor, prefix: str, i: int) -> tuple[Tensor, Tensor]:
    """The input of a part of layer ``i``, and the factors of its output in each stream.

    Shape:
        streams [n_embd, n_hc, T] -> [n_embd, T], [1, n_hc, T]
    """
    mixed = _project(b, streams, prefix, i)  # [2 * n_hc, T]
    gate = ops.scale(b.ctx, _factors(b, mixed, prefix, 1), b.hparams.own["hc_magnitude"])
    gate = ops.scale_bias(b.ctx, gate, 1.0, b.hparams.own["hc_eps"])
    return _weighted_sum(b, streams, _factors(b, mixed, prefix, 0)), gate


def read_gated(b: GraphBuilder, streams: Tensor, prefix: str, i: int) -> tuple[Tensor, Tensor]:
    """As ``read_streams``; each element of a stream has a gate, by two matrices of low rank.

    Shape:
        streams [n_embd, n_hc, T] -> [n_embd, T], [1, n_hc, T]
    """
    ctx, (n_hc, n_tokens) = b.ctx, streams.ne[1:3]
    normed, x = _gated_mean(b, streams, prefix, i)
    gate = b.linear(normed, f"{prefix}_inject", f"hc_inject-{i}")  # [n_hc, T]
    gate = ops.scale(ctx, ops.sigmoid(ctx, ops.scale(ctx, gate, 1 / n_hc)), 2.0)
    return x, ops.reshape_3d(ctx, gate, 1, n_hc, n_tokens)


def merge_gated(b: GraphBuilder, streams: Tensor) -> Tensor:
    """The input of the output matrix: [n_embd, n_hc, T] -> [n_embd, T]."""
    return _gated_mean(b, streams, "output_hc", b.hparams.n_layer)[1]


def read_mixed(
    b: GraphBuilder, streams: Tensor, prefix: str, i: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The input of a part of layer ``i``, the mixed streams, and the factors of its output in each.

    Shape:
        streams [n_embd, n_hc, T] -> [n_embd, T], [n_embd, n_hc, T], [1, n_hc, T]
    """
    ctx, n, own = b.ctx, b.hparams.size("n_hc"), b.hparams.own
    mixed = _project(b, streams, prefix, i)  # [n_mixes, T]
    matrix = _affine(b, mixed, prefix, 2, n * n)
    matrix = ops.reshape_3d(ctx, matrix, n, n, mixed.ne[1])  # [to, from, T]
    matrix = ops.sinkhorn(ctx, matrix, own["n_sinkhorn"], own["hc_eps"]).set_name(f"hc_comb-{i}")
    gate = ops.scale(ctx, _factors(b, mixed, prefix, 1), 2.0)
    x = _weighted_sum(b, streams, _factors(b, mixed, prefix, 0))
    return x, ops.out_prod(ctx, streams, matrix), gate


def write_streams(b: GraphBuilder, x: Tensor, streams: Tensor, gate: Tensor) -> Tensor:
    """The streams plus ``x`` times each stream's factor.

    Shape:
        x [n_embd, T], streams [n_embd, n_hc, T], gate [1, n_hc, T] -> [n_embd, n_hc, T]
    """
    return ops.add(b.ctx, streams, ops.mul(b.ctx, start_streams(b, x), gate))


def merge_streams(b: GraphBuilder, streams: Tensor) -> Tensor:
    """The input of the output's norm: [n_embd, n_hc, T] -> [n_embd, T]."""
    mixed = _project(b, streams, "output_hc", b.hparams.n_layer)
    return _weighted_sum(b, streams, _factors(b, mixed, "output_hc", 0))


def _gated_mean(b: GraphBuilder, streams: Tensor, prefix: str, i: int) -> tuple[Tensor, Tensor]:
    """The normed streams, and the mean of these times their gates.

    Shape:
        streams [n_embd, n_hc, T] -> [n_hc * n_embd, T], [n_embd, T]
    """
    ctx, (n_embd, n_hc, n_tokens) = b.ctx, streams.ne[:3]
    weight = ops.reshape_2d(ctx, b.weight(f"{prefix}_norm.weight"), n_embd, n_hc)
    x = ops.mul(ctx, ops.rms_norm(ctx, streams, b.hparams.norm_eps), weight)
    x = ops.reshape_2d(ctx, x, n_embd * n_hc, n_tokens).set_name(f"hc_norm-{i}")
    gates = ops.scale(ctx, b.linear(x, f"{prefix}_down", f"hc_down-{i}"), 1 / n_hc)
    gates = b.linear(ops.silu(ctx, gates), f"{prefix}_up", f"hc_gate-{i}")
    gated = ops.mul(ctx, x, ops.sigmoid(ctx, gates))
    return x, mean_stream(b, ops.reshape_3d(ctx, gated, n_embd, n_hc, n_tokens))


def mean_stream(b: GraphBuilder, streams: Tensor) -> Tensor:
    """The mean of the streams: [n_embd, n_hc, T] -> [n_embd, T]."""
    return ops.scale(b.ctx, _sum(b, streams), 1 / streams.ne[1])


def _project(b: GraphBuilder, streams: Tensor, prefix: str, i: int) -> Tensor:
    flat = ops.reshape_2d(b.ctx, streams, streams.ne[0] * streams.ne[1], streams.ne[2])
    return b.linear(b.rms_norm(flat, "", f"hc_norm-{i}"), f"{prefix}_fn", f"hc_mixes-{i}")


def _factors(b: GraphBuilder, mixed: Tensor, prefix: str, part: int) -> Tensor:
    """``sigmoid(scale * mixed + base)`` of the first or second ``n_hc`` rows: [1, n_hc, T]."""
    n = b.hparams.size("n_hc")
    x = ops.sigmoid(b.ctx, _affine(b, mixed, prefix, part, n))
    return ops.reshape_3d(b.ctx, x, 1, n, mixed.ne[1])


def _affine(b: GraphBuilder, mixed: Tensor, prefix: str, part: int, n: int) -> Tensor:
    """``scale * mixed + base`` of ``n`` rows after ``part`` times ``n_hc`` rows: [n, T]."""
    ctx, first = b.ctx, part * b.hparams.size("n_hc")
    x = ops.view_2d(ctx, mixed, n, mixed.ne[1], mixed.nb[1], first * mixed.nb[0])
    scale, base = b.weight(f"{prefix}_scale.weight"), b.weight(f"{prefix}_base.weight")
    x = ops.mul(ctx, x, ops.view_1d(ctx, scale, 1, part * scale.nb[0]))
    return ops.add(ctx, x, ops.view_1d(ctx, base, n, first * base.nb[0]))


def _weighted_sum(b: GraphBuilder, streams: Tensor, factors: Tensor) -> Tensor:
    """The sum of the streams times ``factors + hc_eps``: [n_embd, T]."""
    factors = ops.scale_bias(b.ctx, factors, 1.0, b.hparams.own["hc_eps"])
    return _sum(b, ops.mul(b.ctx, streams, factors))


def _sum(b: GraphBuilder, x: Tensor) -> Tensor:
    """The sum of streams: [n_embd, n_hc, T] -> [n_embd, T]."""
    ctx, (n_embd, n, n_tokens) = b.ctx, x.ne[:3]
    parts = [ops.view_2d(ctx, x, n_embd, n_tokens, x.nb[2], k * x.nb[1]) for k in range(n)]
    return reduce(partial(ops.add, ctx), parts)
