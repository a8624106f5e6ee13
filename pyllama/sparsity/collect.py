"""Evaluates a text with a model and counts the active neurons.

    stats = collect(model, tokens, n_ctx=512, progress=bar)

Works on any model with ReLU, dense or sparse. A sparse model is evaluated with the threshold -inf,
so all neurons are computed, and its scores are compared with the real activations. Needs memory for
the activations of one layer and one ubatch, and for the counts. The text is split into chunks of
``n_ctx`` tokens, each evaluated from an empty cache; nodes after the last ReLU are not computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.cgraph import CGraph
from pyggml.gguf import GGUFFile
from pyggml.sched import to_numpy
from pyggml.tensor import Tensor

from ..errors import BatchError, ModelError
from ..hparams import HParams
from ..runtime.batch import Batch
from ..runtime.context import Context
from ..runtime.model import Model
from .fingerprint import model_fingerprint
from .stats import Statistics, source_name

_MAX_UNION = 512  # consecutive tokens whose active neurons are united
_GATES = re.compile(r"ffn_(?:gate|up)(?:_sparse|_b)?-(\d+)(?:_b)?")


def collect(
    model: Model,
    tokens: Sequence[int],
    *,
    n_ctx: int = 512,
    n_chunks: int | None = None,
    n_threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Statistics:
    """Count the active neurons of all tokens and return the statistics.

    Args:
        tokens: the whole text.
        n_ctx: tokens per chunk.
        n_chunks: maximum number of chunks; None for all.
        progress: called with the completed fraction.

    Raises:
        ModelError: the model's activation is not ReLU-like.
        BatchError: there are no tokens.
        ComputeError: as ``Context.decode``.
    """
    n_ctx = max(1, min(n_ctx, len(tokens), model.hparams.n_ctx_train))
    chunks = text_chunks(model, tokens, n_ctx)[:n_chunks]
    if not chunks:
        raise BatchError("there are no tokens to evaluate: use a longer text or more chunks")
    whole = model.with_hparams(replace(model.hparams, sparse_threshold=-math.inf))
    context = Context(whole, n_ctx=n_ctx, n_batch=n_ctx, n_threads=n_threads)
    nodes = _watched(model, context.graph(1, 1).graph)
    counter = _Counter(model.hparams, context.n_ubatch)
    counter.scored = {i for i, what in nodes.values() if what == "scores"}
    last, done = [*nodes][-1], 0

    def callback(node: Tensor, ask: bool) -> bool:
        nonlocal done
        if ask:
            return node.name in nodes
        layer, what = nodes[node.name]
        counter.add(layer, what, to_numpy(node)[0, 0])
        done += node.ne[1]
        if progress is not None:
            progress(done / (len(nodes) * sum(map(len, chunks))))
        return node.name != last

    with context.watched(callback):
        for chunk in chunks:
            context.kv.clear()
            # logits="all": otherwise the last layer is computed for few tokens only
            context.decode(Batch(chunk, logits="all"))
    return counter.statistics(model)


def text_chunks(model: Model, tokens: Sequence[int], n_ctx: int) -> list[list[int]]:
    """A text in pieces of ``n_ctx`` tokens, each with BOS in place of its first if it needs one."""
    chunks = [list(tokens[i : i + n_ctx]) for i in range(0, len(tokens), n_ctx)]
    if model.tokenizer.add_bos and model.tokenizer.bos is not None:
        for chunk in chunks:
            chunk[0] = model.tokenizer.bos
    return chunks


def _watched(model: Model, graph: CGraph) -> dict[str, tuple[int, str]]:
    """Return the nodes to watch, in order: the input of each layer's ReLU, and its scores."""
    order = {node: at for at, node in enumerate(graph.nodes)}
    found: list[tuple[int, Tensor, int, str]] = []
    for i, gate in relu_inputs(model, graph):
        found.append((order[gate], gate, i, "gate"))
        if i in model.hparams.predicted:
            scores = _scores(graph, i)
            found.append((order[scores], scores, i, "scores"))
    return {node.name: (i, what) for _, node, i, what in sorted(found, key=lambda x: x[0])}


def relu_inputs(model: Model, graph: CGraph) -> Iterator[tuple[int, Tensor]]:
    """Yield the input of each layer's ReLU: the gate, or up without a gate, with bias."""
    gates: dict[int, Tensor] = {}
    for node in graph.nodes:
        kind = node.op_params.get("kind") if node.op else None
        source = node.src[0] if node.src else None
        match = source and _GATES.fullmatch(source.name)
        if not match or kind not in ("relu", "reglu"):
            continue
        has_gate = f"blk.{match[1]}.ffn_gate.weight" in model.weights
        if source is not None and source.name.startswith("ffn_gate" if has_gate else "ffn_up"):
            gates[int(match[1])] = source
    for i in range(model.hparams.n_layer):
        if i not in gates:
            raise ModelError(
                f"{model.path}: layer {i} of this {model.hparams.arch} has no ReLU, so its "
                "activations are never exactly zero: statistics need a model trained with ReLU"
            )
        yield i, gates[i]


def _scores(graph: CGraph, i: int) -> Tensor:
    """Return the scores that select the neurons of a sparse layer."""
    node = graph.get_tensor(f"ffn_down_sparse-{i}")
    scores = node and node.src[2]
    assert scores is not None
    return scores


class _Counter:
    """Sums over all evaluated tokens."""

    def __init__(self, hparams: HParams, n_ubatch: int) -> None:
        n_layer = hparams.n_layer
        self.hparams, self.scored = hparams, set[int]()
        self.counts = np.zeros((n_layer, hparams.n_ff), np.int64)
        self.sizes = tuple(1 << k for k in range(min(n_ubatch, _MAX_UNION).bit_length()))
        self.unions = np.zeros((n_layer, len(self.sizes), 2), np.int64)  # neurons, windows
        self.scores = np.zeros((n_layer, 2), np.int64)  # above the threshold; and active as well
        self.n_tokens = 0
        self._waiting: dict[int, npt.NDArray[np.bool_]] = {}

    def add(self, layer: int, what: str, values: npt.NDArray[Any]) -> None:
        """Add a node's values of one ubatch, [T, n_ff]; ``what`` is "gate" or "scores"."""
        gate = what == "gate"
        found: npt.NDArray[np.bool_] = values > 0 if gate else values >= self.threshold
        if gate:
            self._count(layer, found)
        if layer in self.scored:
            other = self._waiting.pop(layer, None)
            if other is None:
                self._waiting[layer] = found
            else:
                self.scores[layer] += (other if gate else found).sum(), (found & other).sum()

    def _count(self, layer: int, active: npt.NDArray[np.bool_]) -> None:
        self.counts[layer] += active.sum(axis=0)
        self.n_tokens += len(active) if layer == 0 else 0
        for k in range(len(self.sizes)):
            if k:  # unite pairs of windows to windows of twice the length
                active = active[: len(active) // 2 * 2]
                active = active[0::2] | active[1::2]
            self.unions[layer, k] += active.sum(), len(active)

    @property
    def threshold(self) -> float:
        """The minimum score of computed neurons."""
        return self.hparams.sparse_threshold

    def statistics(self, model: Model) -> Statistics:
        """Return the sums as shares."""
        is_measured = self.unions[0, :, 1] > 0
        n_ff, predicted_layers = (
            self.hparams.n_ff,
            np.isin(np.arange(len(self.counts)), [*self.scored]),
        )
        above, both = np.where(predicted_layers[:, None], self.scores, np.nan).T
        active = self.counts.sum(axis=1)
        with GGUFFile(model.path) as file:
            fingerprint = model_fingerprint(file)
        return Statistics(
            model.desc,
            fingerprint,
            self.n_tokens,
            source_name(self.hparams),
            self.threshold if self.scored else math.nan,
            self.counts,
            tuple(np.array(self.sizes)[is_measured].tolist()),
            self.unions[:, is_measured, 0] / (self.unions[:, is_measured, 1] * n_ff),
            above / (self.n_tokens * n_ff),
            np.where(active > 0, both / np.maximum(active, 1), np.nan),
            np.where(above > 0, both / np.maximum(above, 1), np.nan),
        )
