"""The graph of a model for training: attention within a window of texts, without a cache.

    b = TrainingBuilder(hparams, weights, n_tokens=512, lora={"blk.0.attn_q.weight": pair})
    logits = build_graph(b)                        # [n_vocab, 512]; all ops have gradients
    for window, mask in b.masks.items():
        mask.set(causal_mask(positions, window, hparams))

Architectures build it as any other graph. Attention is MUL_MAT, SOFT_MAX, MUL_MAT with a mask, and
nothing is stored. A window has several texts after each other; each begins with position 0.
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
from pyggml.tensor import Tensor

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
        masks: by attention window (0: none) F32 [T, T], what is added to the scores of each token.

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
        windows = sorted({hparams.window(i) for i in range(hparams.n_layer)})
        self.masks = {
            n: self._input(GGMLType.F32, f"attn_inp_mask_{n}", n_tokens, n_tokens) for n in windows
        }

    def attention(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: int,
        distances: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Attend to the keys and values of the window; arguments as of ``GraphBuilder``."""
        ctx, hp = self.ctx, self.hparams.of_layer(layer)
        if distances is not None:
            raise ModelError(f"{hp.arch} models cannot be trained here: biases by distance")
        if k is not None:
            k = ops.permute(ctx, k, 0, 2, 1, 3)  # [head_dim, T, n_head_kv]
            if v is None:  # its first columns
                v = ops.view_3d(ctx, k, (hp.head_dim_v, *k.ne[1:3]), k.nb[1:3], 0)
            else:
                v = ops.permute(ctx, v, 0, 2, 1, 3)
            v = ops.cont(ctx, ops.transpose(ctx, v))  # [T, head_dim_v, n_head_kv]
            self._keys[layer] = k, v
        k, v = self._keys[self.hparams.cache_layer(layer)]
        scale, cap = hp.attn_scale or 1 / math.sqrt(hp.head_dim), hp.attn_logit_softcap
        kq = ops.mul_mat(ctx, k, ops.permute(ctx, q, 0, 2, 1, 3)).set_name(f"kq-{layer}")
        if cap:
            kq = ops.unary(ctx, ops.scale(ctx, kq, scale / cap), "tanh")
            kq, scale = ops.scale(ctx, kq, cap), 1.0
        kq = ops.soft_max_ext(
            ctx, kq, self.masks[self.hparams.window(layer)], scale, hp.max_alibi_bias,
            sinks=self.weights.get(f"blk.{layer}.attn_sinks.weight"),
        ).set_name(f"kq_soft_max-{layer}")  # fmt: skip  # [T, T, n_head]
        out = ops.mul_mat(ctx, v, kq).set_name(f"kqv-{layer}")  # [head_dim_v, T, n_head]
        out = ops.cont(ctx, ops.permute(ctx, out, 0, 2, 1, 3))
        return ops.reshape_2d(ctx, out, hp.n_embd_out, self.n_tokens).set_name(f"kqv_out-{layer}")

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
    n = len(positions)
    index = np.arange(n)
    first = np.maximum.accumulate(np.where(positions == 0, index, 0))
    if window and hparams.swa_chunked:
        first += positions // window * window
    elif window:
        first = np.maximum(first, index - window + 1)
    distance = index - index[:, None]  # from query to key, negative for earlier keys
    allowed = (distance <= 0) & (index >= first[:, None])
    bias = distance.astype(np.float32) if hparams.max_alibi_bias else np.float32(0)
    mask: npt.NDArray[np.float32] = np.where(allowed, bias, np.float32(-np.inf))
    return mask
