"""A feed-forward part that computes only the neurons that a source says are active.

    cur = sparse_ffn(b, x, i, "relu", "", pred_in)         # [n_embd, T]

A source gives each neuron of each token a score, and those that reach the threshold are computed:

- ``predictor``: two small matrices trained for it, ``fc2 @ relu(fc1 @ pred_in)``;
- ``exact``: the gate itself (without gates: ``up``), computed in full, so that nothing is lost;
- ``signs``: how many signs of ``x`` and of the gate's row agree; ``svd``: a gate of low rank;
- ``topk=K``: everything is computed, and the K largest results of a token are kept (to measure).

Where a layer has its neurons on two devices (``sparsity.placement``), each computes its own, and
the partial results are added. Node names are PowerInfer's.
Source: PowerInfer, ``llm_build_ffn_sparse``; Shin et al. 2024, "SparseInfer".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from pyggml import ops
from pyggml.gguf import TensorInfo
from pyggml.ops.op import Array
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph.activation import RELU_LIKE, activate, gated
from ..graph.builder import GraphBuilder
from ..graph.ffn import ffn_hidden
from ..graph.variants import Patterns, WeightPlan
from ..hparams import HParams
from .weights import plan_weights, predictor_faults, sparse_patterns

_POSITIVE = float(np.finfo(np.float32).smallest_subnormal)  # a threshold: larger than zero


class Mask(NamedTuple):
    """The active neurons: those whose score, F32 [n_ff, T], reaches the threshold."""

    scores: Tensor
    threshold: float


class Side(NamedTuple):
    """The neurons of a layer that are on one device.

    Attributes:
        suffix: of the names of their weights and nodes.
        up: which ones, for the rows of up and gate, as the ops take it; down: for those of down.
    """

    suffix: str
    up: Mapping[str, Tensor]
    down: Mapping[str, Tensor]


_ALL = Side("", {}, {})


class SparseFFN:
    """Implements ``graph.variants.Variant``."""

    def patterns(self, patterns: Patterns, names: Collection[str]) -> Patterns:
        """See ``sparse_patterns``."""
        return sparse_patterns(patterns, names)

    def faults(self, infos: Mapping[str, TensorInfo], n_layer: int) -> list[str]:
        """See ``predictor_faults``."""
        return predictor_faults(infos, n_layer)

    def plan(self, infos: Mapping[str, TensorInfo], hparams: HParams) -> WeightPlan:
        """See ``plan_weights``."""
        return plan_weights(infos, hparams)

    def ffn(
        self, b: GraphBuilder, x: Tensor, i: int, act: str, up_act: str, pred_in: Tensor
    ) -> Tensor | None:
        """A layer that has a source, or a transposed down matrix."""
        if b.hparams.source(i) != "off":
            return sparse_ffn(b, x, i, act, up_act, pred_in)
        if f"blk.{i}.ffn_down_t.weight" in b.weights:
            return down(b, ffn_hidden(b, x, i, act, up_act), i)
        return None


def sparse_ffn(
    b: GraphBuilder, x: Tensor, i: int, act: str, up_act: str, pred_in: Tensor
) -> Tensor:
    """The feed-forward part of a layer that has a source, without the residual.

    Args:
        pred_in: what predictors read.

    Shape:
        x, pred_in [n_embd, T] -> [n_embd, T]

    Raises:
        ModelError: the activation is not zero for what a source leaves out.
    """
    if act not in RELU_LIKE:
        raise ModelError(
            f"sparse inference needs a model that was trained with ReLU, and the activation of "
            f"this {b.hparams.arch} is {act}: use `sparse='off'`, or `hidden_act='relu'` "
            "only if it was trained so"
        )
    source, _, k = b.hparams.sparse[i].partition("=")
    first = "gate" if f"blk.{i}.ffn_gate.weight" in b.weights else "up"  # its sign decides
    mask = gate = None
    if source == "predictor":
        mask = Mask(_predicted(b, pred_in, i), b.hparams.sparse_threshold)
    elif source in ("signs", "svd"):
        scores = (_agreeing_signs if source == "signs" else _low_rank)(b, x, i, first)
        mask = Mask(scores, b.hparams.sparse_threshold)
    elif source == "exact" and first == "gate":
        gate = b.linear(x, f"blk.{i}.ffn_gate", f"ffn_gate-{i}")
        mask = Mask(gate, _POSITIVE)
    outs = []
    for sides in _sides(b, i, meet=mask is None):
        up = _neurons(b, x, i, "up", mask, sides)
        dense = gate is not None or first == "up"
        found = gate if dense else _neurons(b, x, i, "gate", mask, sides)
        y = _activated(b, f"{sides[0].suffix}-{i}", up, found, act, up_act)
        if source == "topk":
            marks = ops.map_custom(b.ctx, partial(_mark_largest, k=int(k)), y)
            mask = Mask(marks.set_name(f"ffn_topk-{i}"), 1.0)
        mask = mask or Mask(y, _POSITIVE)
        outs += [_part(b, y, i, mask, side) for side in sides]
    return _finished(b, outs, i)


def _sides(b: GraphBuilder, i: int, *, meet: bool) -> list[list[Side]]:
    """The devices that a layer's neurons are on, in groups whose values of up and gate meet.

    They do not have to where a neuron is on one device with all of its rows: then each device has a
    part of the result without hearing of the other.
    """
    names = ("gpu_idx", "gpu_bucket", "gpu_idx_down", "gpu_bucket_down")
    idx, bucket, idx_down, bucket_down = (b.weights.get(f"blk.{i}.{name}") for name in names)
    if idx is None or bucket is None:
        return [[_ALL]]
    if idx_down is None or bucket_down is None:
        host = Side("", {"gpu_idx": idx}, {"gpu_idx": idx})
        gpu = Side("_gpu", {"bucket": bucket}, {"bucket": bucket})
        return [[host, gpu]] if meet else [[host], [gpu]]
    host = Side("", {"gpu_idx": idx}, {"gpu_idx": idx_down})
    return [[host, Side("_gpu", {"bucket": bucket}, {"bucket": bucket_down})]]


def down(b: GraphBuilder, y: Tensor, i: int, mask: Mask | None = None) -> Tensor:
    """The transposed down matrix times the active neurons, or times all, plus its bias.

    Shape:
        y [n_ff, T] -> [n_embd, T]
    """
    return _finished(b, [_part(b, y, i, mask, _ALL)], i)


def _part(b: GraphBuilder, y: Tensor, i: int, mask: Mask | None, side: Side) -> Tensor:
    """What the neurons of one side add to the result: [n_embd, T]."""
    weight = b.weight(f"blk.{i}.ffn_down{side.suffix or '_t'}.weight")  # [n_embd, n_ff]
    scores, threshold = mask or (None, 0.0)
    out = ops.axpy(b.ctx, weight, y, scores, threshold, **side.down)
    b.graph.build_forward_expand(out.set_name(f"ffn_down_sparse{side.suffix}-{i}"))
    return out


def _finished(b: GraphBuilder, parts: list[Tensor], i: int) -> Tensor:
    """The sum of the parts, plus the bias."""
    out = parts[0]
    if len(parts) > 1:
        out = ops.add(b.ctx, *parts).set_name(f"ffn_down_merged-{i}")
    for name in (f"blk.{i}.ffn_down_t.bias", f"blk.{i}.ffn_down.bias"):  # PowerInfer's; ours
        if name in b.weights:
            out = ops.add(b.ctx, out, b.weights[name]).set_name(f"ffn_down_b-{i}")
    b.graph.build_forward_expand(out)
    return out


def _neurons(
    b: GraphBuilder, x: Tensor, i: int, part: str, mask: Mask | None, sides: list[Side]
) -> Tensor:
    """The active neurons of ``up`` or ``gate`` on some devices, or all: [n_ff, T]."""
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
    bias = b.weights.get(f"{prefix}{suffix}.bias")
    if bias is not None:  # it makes others larger than zero too: their scores keep them out
        y = ops.add(b.ctx, y, bias).set_name(f"ffn_{part}_b{suffix}-{i}")
    b.graph.build_forward_expand(y)
    return y


def _activated(
    b: GraphBuilder, where: str, up: Tensor, gate: Tensor | None, act: str, up_act: str
) -> Tensor:
    """What the down matrix multiplies: [n_ff, T]."""
    if gate is None:
        return activate(b.ctx, up, act).set_name(f"ffn_up_act{where}")
    if up_act:
        up = activate(b.ctx, up, up_act).set_name(f"ffn_up_act{where}")
    return gated(b.ctx, gate, up, act).set_name(f"ffn_gate_{'sym' if up_act else 'par'}{where}")


def _predicted(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    hidden = b.linear(x, f"blk.{i}.fc1", f"mlp_pre_hidden-{i}")  # [rank, T]
    hidden = ops.relu(b.ctx, hidden).set_name(f"mlp_pre_relu-{i}")
    return b.linear(hidden, f"blk.{i}.fc2", f"mlp_pre_out-{i}")  # [n_ff, T]


def _low_rank(b: GraphBuilder, x: Tensor, i: int, part: str) -> Tensor:
    hidden = b.linear(x, f"blk.{i}.ffn_{part}_svd_1", f"ffn_{part}_svd_hidden-{i}")  # [rank, T]
    scores = b.linear(hidden, f"blk.{i}.ffn_{part}_svd_2", f"ffn_{part}_svd-{i}")  # [n_ff, T]
    bias = b.weights.get(f"blk.{i}.ffn_{part}.bias")
    return scores if bias is None else ops.add(b.ctx, scores, bias)


def _agreeing_signs(b: GraphBuilder, x: Tensor, i: int, part: str) -> Tensor:
    signs = b.weights[f"blk.{i}.ffn_{part}_signs"]
    return ops.mul_mat_signs(b.ctx, signs, x).set_name(f"ffn_{part}_signs-{i}")  # [n_ff, T]


def _mark_largest(dst: Array, y: Array, *, k: int) -> None:
    """1 for the ``k`` largest magnitudes of each token, the first of equal ones, 0 for others."""
    order = np.argsort(-np.abs(y), axis=-1, kind="stable")
    dst[...] = 0
    np.put_along_axis(dst, order[..., :k], 1, axis=-1)
