"""The sparse FFN: computes only the neurons that a source predicts to be active.

    cur = sparse_ffn(b, x, i, "relu", "", pred_in)         # [n_embd, T]

The source computes a score per neuron and token. Neurons with score >= threshold are computed:

- ``predictor``: two small trained matrices, ``fc2 @ relu(fc1 @ pred_in)``;
- ``cross``: the same matrices with ``pred_in`` of the layer before, so scores are known a layer
  earlier;
- ``exact``: the gate itself (without a gate: ``up``), computed in full, so the result is exact;
- ``signs``: the number of equal signs in ``x`` and the gate's row;
- ``svd``: a low-rank approximation of the gate;
- ``topk=K``: all neurons are computed and the K largest of a token are kept (for measurements).

If a layer's neurons are on two devices (``sparsity.placement``), each device computes its own, and
the partial results are added. Node names are PowerInfer's.
Source: PowerInfer, ``llm_build_ffn_sparse``; Shin et al. 2024, "SparseInfer"; Q-Infer (``cross``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

import pyggml as ops
from pyggml.ops.op import Array
from pyggml.tensor import Tensor

from ...activation import POSITIVE, RELU_LIKE, activate, gated
from ...errors import ModelError
from ..builder import GraphBuilder


class Mask(NamedTuple):
    """The active neurons: ``scores`` (F32 [n_ff, T]) >= ``threshold``."""

    scores: Tensor
    threshold: float


class Side(NamedTuple):
    """The neurons of a layer that are on one device.

    Attributes:
        suffix: suffix of the names of their weights and nodes.
        up: arguments of the ops that select rows of up and gate.
        down: arguments of the op that select rows of down.
    """

    suffix: str
    up: Mapping[str, Tensor]
    down: Mapping[str, Tensor]


_ALL = Side("", {}, {})


def sparse_ffn(
    b: GraphBuilder, x: Tensor, i: int, act: str, up_act: str, pred_in: Tensor
) -> Tensor:
    """Return the FFN of a layer with a source, without the residual.

    Args:
        pred_in: input of the predictors.

    Shape:
        x, pred_in [n_embd, T] -> [n_embd, T]

    Raises:
        ModelError: the activation is not ReLU-like, so skipped neurons would not be zero.
    """
    check_relu(b, act)
    source, _, k = b.hparams.sparse[i].partition("=")
    first = "gate" if f"blk.{i}.ffn_gate.weight" in b.weights else "up"  # its sign decides
    mask = gate = None
    if source == "predictor":
        mask = Mask(_predicted(b, pred_in, i), b.hparams.sparse_threshold)
    elif source == "cross":
        mask = Mask(_predicted_before(b, pred_in, i), b.hparams.sparse_threshold)
    elif source in ("signs", "svd"):
        scores = (_agreeing_signs if source == "signs" else _low_rank)(b, x, i, first)
        mask = Mask(scores, b.hparams.sparse_threshold)
    elif source == "exact" and first == "gate":
        gate = b.linear(x, f"blk.{i}.ffn_gate", f"ffn_gate-{i}")
        mask = Mask(gate, POSITIVE)
    outs = []
    for sides in _sides(b, i, merge=mask is None):
        up = _neurons(b, x, i, "up", mask, sides)
        dense = gate is not None or first == "up"
        gate_rows = gate if dense else _neurons(b, x, i, "gate", mask, sides)
        y = _activated(b, f"{sides[0].suffix}-{i}", up, gate_rows, act, up_act)
        if source == "topk":
            marks = ops.map_custom(b.ctx, partial(_mark_largest, k=int(k)), y)
            mask = Mask(marks.set_name(f"ffn_topk-{i}"), 1.0)
        mask = mask or Mask(y, POSITIVE)
        outs += [_part(b, y, i, mask, side) for side in sides]
    return _finished(b, outs, i)


def check_relu(b: GraphBuilder, act: str) -> None:
    """Raise ModelError if skipped neurons would not be zero."""
    if act not in RELU_LIKE:
        raise ModelError(
            f"sparse inference needs a model trained with ReLU, but the activation of this "
            f"{b.hparams.arch} is {act}: use `sparse='off'`, or `hidden_act='relu'` only if it was "
            "trained with ReLU"
        )


def _sides(b: GraphBuilder, i: int, *, merge: bool) -> list[list[Side]]:
    """Return the sides of a layer, in groups whose up and gate values are merged.

    If every neuron is on one device with all of its rows, the sides are independent and need no
    merge, unless ``merge`` asks for it.
    """
    names = ("gpu_idx", "gpu_bucket", "gpu_idx_down", "gpu_bucket_down")
    idx, bucket, idx_down, bucket_down = (b.weights.get(f"blk.{i}.{name}") for name in names)
    if idx is None or bucket is None:
        return [[_ALL]]
    if idx_down is None or bucket_down is None:
        host = Side("", {"gpu_idx": idx}, {"gpu_idx": idx})
        gpu = Side("_gpu", {"bucket": bucket}, {"bucket": bucket})
        return [[host, gpu]] if merge else [[host], [gpu]]
    host = Side("", {"gpu_idx": idx}, {"gpu_idx": idx_down})
    return [[host, Side("_gpu", {"bucket": bucket}, {"bucket": bucket_down})]]


def down(b: GraphBuilder, y: Tensor, i: int, mask: Mask | None = None) -> Tensor:
    """Return the down projection of the active neurons (of all without ``mask``), with bias.

    Shape:
        y [n_ff, T] -> [n_embd, T]
    """
    return _finished(b, [_part(b, y, i, mask, _ALL)], i)


def _part(b: GraphBuilder, y: Tensor, i: int, mask: Mask | None, side: Side) -> Tensor:
    """Return the partial result of the neurons of one side, [n_embd, T]."""
    weight = b.weight(f"blk.{i}.ffn_down{side.suffix or '_t'}.weight")  # [n_embd, n_ff]
    scores, threshold = mask or (None, 0.0)
    out = ops.axpy(b.ctx, weight, y, scores, threshold, **side.down)
    b.graph.build_forward_expand(out.set_name(f"ffn_down_sparse{side.suffix}-{i}"))
    return out


def _finished(b: GraphBuilder, parts: list[Tensor], i: int) -> Tensor:
    """Return the sum of the partial results plus the bias."""
    out = parts[0]
    if len(parts) > 1:
        out = ops.add(b.ctx, *parts).set_name(f"ffn_down_merged-{i}")
    out = b.weight_scale(out, f"blk.{i}.ffn_down", f"ffn_down-{i}")
    for name in (f"blk.{i}.ffn_down_t.bias", f"blk.{i}.ffn_down.bias"):  # PowerInfer's; ours
        if name in b.weights:
            out = ops.add(b.ctx, out, b.weights[name]).set_name(f"ffn_down_b-{i}")
    b.graph.build_forward_expand(out)
    return out


def _neurons(
    b: GraphBuilder, x: Tensor, i: int, part: str, mask: Mask | None, sides: list[Side]
) -> Tensor:
    """Return ``up`` or ``gate`` of the active neurons (all without ``mask``), [n_ff, T]."""
    prefix, suffix = f"blk.{i}.ffn_{part}", sides[0].suffix
    if mask is None:
        return b.linear(x, prefix, f"ffn_{part}-{i}")
    ys = []
    for side in sides:
        weight = b.weights[f"{prefix}{side.suffix}.weight"]
        y = ops.mul_mat_sparse(b.ctx, weight, x, mask.scores, mask.threshold, **side.up)
        ys.append(y.set_name(f"ffn_{part}_sparse{side.suffix}-{i}"))
        b.graph.build_forward_expand(y)
    y = ys[0]
    if len(ys) > 1:
        y = ops.add(b.ctx, *ys).set_name(f"ffn_{part}_merged-{i}")
    y = b.weight_scale(y, prefix, f"ffn_{part}-{i}")
    bias = b.weights.get(f"{prefix}{suffix}.bias")
    if bias is not None:  # inactive neurons become nonzero, but the mask excludes them from down
        y = ops.add(b.ctx, y, bias).set_name(f"ffn_{part}_b{suffix}-{i}")
    b.graph.build_forward_expand(y)
    return y


def _activated(
    b: GraphBuilder, where: str, up: Tensor, gate: Tensor | None, act: str, up_act: str
) -> Tensor:
    """Return the input of the down projection, [n_ff, T]."""
    if gate is None:
        return activate(b.ctx, up, act).set_name(f"ffn_up_act{where}")
    if up_act:
        up = activate(b.ctx, up, up_act).set_name(f"ffn_up_act{where}")
    return gated(b.ctx, gate, up, act).set_name(f"ffn_gate_{'sym' if up_act else 'par'}{where}")


def _predicted(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    hidden = b.linear(x, f"blk.{i}.fc1", f"mlp_pre_hidden-{i}")  # [rank, T]
    hidden = ops.relu(b.ctx, hidden).set_name(f"mlp_pre_relu-{i}")
    return b.linear(hidden, f"blk.{i}.fc2", f"mlp_pre_out-{i}")  # [n_ff, T]


def predict_next(b: GraphBuilder, pred_in: Tensor, i: int) -> None:
    """Compute the scores of layer ``i + 1`` into ``b.predicted``, if its source is ``cross``.

    Args:
        pred_in: input of the predictors of layer ``i``, [n_embd, T].
    """
    if i + 1 < b.hparams.n_layer and b.hparams.source(i + 1) == "cross":
        b.predicted[i + 1] = _predicted(b, pred_in, i + 1)
        b.graph.build_forward_expand(b.predicted[i + 1])


def _predicted_before(b: GraphBuilder, pred_in: Tensor, i: int) -> Tensor:
    """The scores that ``predict_next`` computed, or those of ``pred_in`` in the first layer."""
    scores = b.predicted.pop(i, None)
    return _predicted(b, pred_in, i) if scores is None else scores


def _low_rank(b: GraphBuilder, x: Tensor, i: int, part: str) -> Tensor:
    hidden = b.linear(x, f"blk.{i}.ffn_{part}_svd_1", f"ffn_{part}_svd_hidden-{i}")  # [rank, T]
    scores = b.linear(hidden, f"blk.{i}.ffn_{part}_svd_2", f"ffn_{part}_svd-{i}")  # [n_ff, T]
    bias = b.weights.get(f"blk.{i}.ffn_{part}.bias")
    return scores if bias is None else ops.add(b.ctx, scores, bias)


def _agreeing_signs(b: GraphBuilder, x: Tensor, i: int, part: str) -> Tensor:
    signs = b.weights[f"blk.{i}.ffn_{part}_signs"]
    return ops.mul_mat_signs(b.ctx, signs, x).set_name(f"ffn_{part}_signs-{i}")  # [n_ff, T]


def _mark_largest(dst: Array, y: Array, *, k: int) -> None:
    """Set ``dst`` to 1 at the ``k`` largest magnitudes of each token (first of ties), else to 0."""
    order = np.argsort(-np.abs(y), axis=-1, kind="stable")
    dst[...] = 0
    np.put_along_axis(dst, order[..., :k], 1, axis=-1)
