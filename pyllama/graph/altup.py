"""AltUp and LAuReL: several streams of a layer's input, and an extra residual of low rank.

    x = altup_streams(b, inp)                      # [n_embd, T, n_altup]
    predicted = altup_predict(b, x, i)             # a layer computes only the active stream
    x = altup_correct(b, predicted, cur, i)
    inp = altup_merge(b, x)                        # [n_embd, T]

The numbers of streams and of the active one are the architecture's ``n_altup`` and ``i_altup``.
Source: Baykal et al. 2023, "Alternating Updates for Efficient Transformers"; Menghani et al. 2024,
"LAuReL: Learned Augmented Residual Layer"; llama.cpp, ``llama_model_gemma3n``.
"""

from __future__ import annotations

import pyggml as ops
from pyggml.tensor import Tensor

from .builder import GraphBuilder

_MIN_SQUARES = 1e-5  # lower bound of a mean of squares that divides


def stream(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """Stream ``i``, or that matrix of any other 3-D tensor: [n, T, k] -> [n, T]."""
    return ops.view_2d(b.ctx, x, x.ne[0], x.ne[1], x.nb[1], i * x.nb[2])


def altup_streams(b: GraphBuilder, x: Tensor) -> Tensor:
    """``x`` and its projections, of the same magnitude: [n_embd, T] -> [n_embd, T, n_altup]."""
    matrices = b.weight("altup_proj.weight")  # [n_embd, n_embd, n_altup - 1]
    others = [_project(b, matrices, k, x, x) for k in range(matrices.ne[2])]
    whole = x
    for other in others:
        whole = ops.concat(b.ctx, whole, other, 2)
    return whole.set_name("inp_stacked")


def altup_merge(b: GraphBuilder, x: Tensor) -> Tensor:
    """The mean of the streams, projected back: [n_embd, T, n_altup] -> [n_embd, T]."""
    matrices = b.weight("altup_unembd_proj.weight")  # [n_embd, n_embd, n_altup - 1]
    first = whole = stream(b, x, 0)
    for k in range(matrices.ne[2]):
        whole = ops.add(b.ctx, whole, _project(b, matrices, k, stream(b, x, k + 1), first))
    return ops.scale(b.ctx, whole, 1 / x.ne[2]).set_name("unembd_merged")


def altup_predict(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """The streams that layer ``i`` predicts from all of them: [n_embd, T, n_altup] -> the same.

    predicted[:, t, j] = x[:, t, j] + sum_k coefficients[k, j, t] * x[:, t, k]
    """
    ctx, n = b.ctx, x.ne[2]
    routed = _modalities(b, stream(b, x, b.hparams.own["i_altup"]), i)
    coefficients = b.linear(routed, f"blk.{i}.altup_predict_coef", f"altup_coefs-{i}")
    coefficients = ops.reshape_3d(ctx, coefficients, n, n, x.ne[1])
    by_column = ops.cont(ctx, ops.permute(ctx, x, 1, 2, 0, 3))  # [n_altup, n_embd, T]
    change = ops.mul_mat(ctx, by_column, coefficients)  # [n_embd, n_altup, T]
    change = ops.cont(ctx, ops.permute(ctx, change, 0, 2, 1, 3))  # [n_embd, T, n_altup]
    return ops.add(ctx, change, x).set_name(f"predictions-{i}")


def altup_correct(b: GraphBuilder, predicted: Tensor, computed: Tensor, i: int) -> Tensor:
    """The streams after layer ``i``, whose active stream is ``computed``.

    Shape:
        predicted [n_embd, T, n_altup], computed [n_embd, T] -> [n_embd, T, n_altup]
    """
    ctx, (n_embd, n_tokens, n) = b.ctx, predicted.ne[:3]
    active = stream(b, predicted, b.hparams.own["i_altup"])
    routed = _modalities(b, computed, i)
    factors = b.linear(routed, f"blk.{i}.altup_correct_coef", f"altup_factors-{i}")
    factors = ops.scale_bias(ctx, factors, 1.0, 1.0)  # [n_altup, T]
    factors = ops.cont_3d(ctx, ops.transpose(ctx, factors), 1, n_tokens, n)
    innovation = ops.repeat_4d(ctx, ops.sub(ctx, computed, active), n_embd, n_tokens, n, 1)
    change = ops.mul(ctx, innovation, factors)
    return ops.add(ctx, change, predicted).set_name(f"corrected-{i}")


def laurel(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """``x`` plus the norm of its product with two thin matrices: [n_embd, T] -> the same."""
    low = b.linear(x, f"blk.{i}.laurel_l", f"laurel_l-{i}")  # [laurel_rank, T]
    wide = b.linear(low, f"blk.{i}.laurel_r", f"laurel_r-{i}")
    wide = b.rms_norm(wide, f"blk.{i}.laurel_post_norm", f"laurel_norm-{i}")
    return ops.add(b.ctx, wide, x).set_name(f"laurel_out-{i}")


def _modalities(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """The router's output: [n_embd, T] -> [n_altup, T]."""
    x = b.rms_norm(x, f"blk.{i}.altup_router_norm", f"altup_router_norm-{i}")
    x = ops.scale(b.ctx, x, 1 / b.hparams.n_embd)
    routed = b.linear(x, f"blk.{i}.altup_router", f"altup_router-{i}")
    return ops.tanh(b.ctx, routed).set_name(f"modalities-{i}")


def _project(b: GraphBuilder, matrices: Tensor, k: int, x: Tensor, like: Tensor) -> Tensor:
    """Matrix ``k`` times ``x``, with the magnitude of ``like``: [n_embd, T]."""
    ctx = b.ctx
    matrix = ops.view_2d(ctx, matrices, *matrices.ne[:2], matrices.nb[1], k * matrices.nb[2])
    y = ops.mul_mat(ctx, matrix, x)
    squares = ops.clamp(ctx, ops.mean(ctx, ops.sqr(ctx, y)), _MIN_SQUARES, float("inf"))
    magnitude = ops.sqrt(ctx, ops.mean(ctx, ops.sqr(ctx, like)))  # [1, T]
    return ops.div(ctx, ops.mul(ctx, y, magnitude), ops.sqrt(ctx, squares))
