"""The graph of a model for training: attention within a window of texts, without a cache.

    b = TrainingBuilder(hparams, weights, n_tokens=512, lora={"blk.0.attn_q.weight": pair})
    logits = build_graph(b)                        # [n_vocab, 512]; all ops have gradients
    b.set_positions(positions)

Architectures build it as any other graph. Attention is one op over ranges of keys, and nothing is
stored. A window has several texts after each other; each begins with position 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyggml as ops
from pyggml.cgraph import CGraph
from pyggml.dtype import GGMLType
from pyggml.tensor import Flag, Tensor

from ..errors import ModelError
from ..graph.adapters import layer_output
from ..graph.builder import GraphBuilder
from ..hparams import HParams
from ..kv.memory import Memory


class LoraPair(NamedTuple):
    """A low-rank change of a matrix: ``gain B (A x)`` is added to its product with x.

    Shape:
        a F32 [n_in, rank], b F32 [rank, n_out]
    """

    a: Tensor
    b: Tensor
    gain: float


class TrainingBuilder(GraphBuilder):
    """Builds the graph of a window of tokens.

    Args:
        lora: the trained changes, by the matrix that they change.

    Attributes:
        inputs: I32 [2 T], tokens and then positions.
        ranges: by attention window (0: none) I32 [4, T], the keys of each token, see
            ``flash_attn_ranges``.
        masks: by attention window F32 [T, T], what is added to the scores, for layers whose sinks
            are trained: the gradient of sinks needs the scores.

    Raises:
        ModelError: models of this kind cannot be trained.
    """

    def __init__(
        self,
        hparams: HParams,
        weights: Mapping[str, Tensor],
        n_tokens: int,
        lora: Mapping[str, LoraPair],
    ) -> None:
        if why := _why_not(hparams):
            raise ModelError(f"{hparams.arch} models cannot be trained here: {why}")
        memory = Memory(replace(hparams, causal=False), 0)  # no caches
        super().__init__(hparams, weights, memory, n_tokens, n_tokens)
        self._lora = lora
        self.inputs = self._input(GGMLType.I32, "inp_data", 2 * n_tokens, 1)
        self.tokens, self.positions = (
            ops.view_1d(self.ctx, self.inputs, n_tokens, offset) for offset in (0, 4 * n_tokens)
        )
        self.ranges: dict[int, Tensor] = {}
        self.masks: dict[int, Tensor] = {}

    def set_positions(self, positions: npt.NDArray[np.integer[Any]]) -> None:
        """Write the ranges or masks of attention that follow from the positions of a window."""
        for window, ranges in self.ranges.items():
            ranges.set(key_ranges(positions, window, self.hparams))
        for window, mask in self.masks.items():
            mask.set(causal_mask(positions, window, self.hparams))

    def attention(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: int,
        distances: Tensor | None = None, chosen: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Attend to the keys and values of the window; arguments as of ``GraphBuilder``."""
        ctx, hp = self.ctx, self.hparams.of_layer(layer)
        if distances is not None:
            raise ModelError(f"{hp.arch} models cannot be trained here: biases by distance")
        q = ops.permute(ctx, q, 0, 2, 1, 3)  # [head_dim, T, n_head]
        if k is not None:
            k = ops.permute(ctx, k, 0, 2, 1, 3)  # [head_dim, T, n_head_kv]
            if v is None:  # its first columns
                v = ops.view_3d(ctx, k, (hp.head_dim_v, *k.ne[1:3]), k.nb[1:3], 0)
            else:
                v = ops.permute(ctx, v, 0, 2, 1, 3)
            self._keys[layer] = k, v
        k, v = self._keys[self.hparams.cache_layer(layer)]
        scale = hp.attn_scale or 1 / math.sqrt(hp.head_dim)
        window, sinks = (
            self.hparams.window(layer),
            self.weights.get(f"blk.{layer}.attn_sinks.weight"),
        )
        if sinks is not None and sinks.flags & Flag.PARAM:
            out = self._attention_in_parts(q, k, v, layer, scale, sinks)
        else:
            if window not in self.ranges:
                name = f"attn_inp_ranges_{window}"
                self.ranges[window] = self._input(GGMLType.I32, name, 4, self.n_tokens)
            out = ops.flash_attn_ranges(
                ctx, q, k, v, self.ranges[window], scale, hp.max_alibi_bias,
                hp.attn_logit_softcap, sinks=sinks,
            ).set_name(f"kqv-{layer}")  # fmt: skip  # [head_dim_v, n_head, T]
        return ops.reshape_2d(ctx, out, hp.n_embd_out, self.n_tokens).set_name(f"kqv_out-{layer}")

    def _attention_in_parts(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, sinks: Tensor
    ) -> Tensor:
        """Attention with the matrix of scores: [head_dim_v, n_head, T]."""
        ctx, hp, window = self.ctx, self.hparams.of_layer(layer), self.hparams.window(layer)
        if window not in self.masks:
            n = self.n_tokens
            self.masks[window] = self._input(GGMLType.F32, f"attn_inp_mask_{window}", n, n)
        cap = hp.attn_logit_softcap
        kq = ops.mul_mat(ctx, k, q).set_name(f"kq-{layer}")
        if cap:
            kq = ops.unary(ctx, ops.scale(ctx, kq, scale / cap), "tanh")
            kq, scale = ops.scale(ctx, kq, cap), 1.0
        mask = self.masks[window]
        kq = ops.soft_max_ext(ctx, kq, mask, scale, hp.max_alibi_bias, sinks=sinks)
        kq = kq.set_name(f"kq_soft_max-{layer}")  # [T, T, n_head]
        v = ops.cont(ctx, ops.transpose(ctx, v))  # [T, head_dim_v, n_head_kv]
        out = ops.mul_mat(ctx, v, kq).set_name(f"kqv-{layer}")  # [head_dim_v, T, n_head]
        return ops.cont(ctx, ops.permute(ctx, out, 0, 2, 1, 3))

    def of_outputs(self, x: Tensor) -> Tensor:
        """All columns: each token has logits."""
        return x

    def _adapt(self, y: Tensor, x: Tensor | None, name: str, ids: Tensor | None = None) -> Tensor:
        pair = self._lora.get(name)
        if pair is None or x is None:
            return super()._adapt(y, x, name, ids)
        change = ops.mul_mat(self.ctx, pair.b, ops.mul_mat(self.ctx, pair.a, x))
        return ops.add(self.ctx, y, ops.scale(self.ctx, change, pair.gain)).set_name(
            f"{y.name}_lora"
        )


def _why_not(hparams: HParams) -> str:
    """The reason why models with these hyperparameters cannot be trained; empty if they can."""
    if not hparams.causal or hparams.has_encoder:
        return "they have an encoder"
    if any(hparams.states):
        return "they have recurrent layers, whose ops have no gradients"
    if hparams.n_embd_target:
        return "they are heads of another model"
    if hparams.alibi_scaled:
        return "their ALiBi biases are scaled"
    return ""


def within_layers(logits: Tensor, n_layer: int) -> Collection[Tensor]:
    """The nodes to recompute: all up to the last layer's output, but the outputs of layers."""
    graph, outputs = CGraph(), {layer_output(i) for i in range(n_layer)}
    graph.build_forward_expand(logits)
    ends = [place for place, node in enumerate(graph.nodes) if node.name in outputs]
    return {node for node in graph.nodes[: max(ends, default=0)] if node.name not in outputs}


def _first_keys(
    positions: npt.NDArray[np.integer[Any]], window: int, hparams: HParams
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For each token the index of its text's first token, and of the first that it attends to."""
    index = np.arange(len(positions))
    start = np.maximum.accumulate(np.where(positions == 0, index, 0))
    if window and hparams.swa_chunked:
        return start, start + positions // window * window
    return start, np.maximum(start, index - window + 1) if window else start


def key_ranges(
    positions: npt.NDArray[np.integer[Any]], window: int, hparams: HParams
) -> npt.NDArray[np.int32]:
    """The keys of each token, as ``flash_attn_ranges`` reads them; arguments of ``causal_mask``.

    Shape:
        NumPy order, positions [T] -> [T, 4]
    """
    start, first = _first_keys(positions, window, hparams)
    place = np.arange(len(positions)) - start
    return np.stack([start, first - start, place + 1, place], -1).astype(np.int32)


def causal_mask(
    positions: npt.NDArray[np.integer[Any]], window: int, hparams: HParams
) -> npt.NDArray[np.float32]:
    """The mask of scores: 0, or ALiBi's negative distance, for visible keys, else -inf.

    Args:
        positions: of the tokens; a text begins at each 0.
        window: size of the attention window; 0: the whole text.

    Shape:
        NumPy order, positions [T] -> [T queries, T keys]
    """
    index = np.arange(len(positions))
    _, first = _first_keys(positions, window, hparams)
    distance = index - index[:, None]  # from query to key, negative for earlier keys
    allowed = (distance <= 0) & (index >= first[:, None])
    bias = distance.astype(np.float32) if hparams.max_alibi_bias else np.float32(0)
    mask: npt.NDArray[np.float32] = np.where(allowed, bias, np.float32(-np.inf))
    return mask
